"""vLLM's KV events under this project's names: what is named, what is not, and what a reset does."""

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.worker.domain.blocks.changes import BlockChanges
from services.worker.domain.blocks.names import PrefixSharing
from services.worker.guests.kv_events.batches import BadBatch, decode_batch
from services.worker.guests.kv_events.contents import VllmContents
from services.worker.guests.kv_events.own_vllm import kv_of_own_vllm
from services.worker.guests.kv_events.vllm_arguments import FLAG, find_kv_events, with_addresses
from services.worker.rank_protocol.failures import EngineRefused
from shared import kv_hash
from shared.client.kv_events.names import block_names
from shared.errors import InvalidRequest
from shared.messages import KVFollowed
from tests.kits.kv.vllm_publisher import CLEARED, as_array, as_map, removed, stored

PROMPT = list(range(1000, 1096))  # six blocks of 16 tokens
FORMS = pytest.mark.parametrize("form", [as_array, as_map])


def apply(contents: VllmContents, *events: dict[str, Any]) -> None:
    contents.apply(decode_batch(as_map(list(events))))


def names_of(contents: VllmContents, tokens: list[int], tenant: str, adapter: str = "") -> list[bytes]:
    """As a router of others computes them."""
    naming = contents.naming()
    group = KVFollowed(
        group="g", model="m", epoch="e", seq=0, lease_ms=1, block_tokens=naming.block_tokens,
        fingerprint=naming.fingerprint, kv_format=naming.kv_format, sharing=naming.sharing,
    )  # fmt: skip
    return block_names(group, tokens, tenant, adapter)


@FORMS
def test_a_prompt_that_grows_and_is_evicted(form: Any) -> None:
    contents = VllmContents("f00d")
    contents.apply(decode_batch(form([stored([b"a", b"b"], None, PROMPT[:32], salt="acme")])))
    contents.apply(decode_batch(form([stored([b"c"], b"b", PROMPT[32:48])])))
    names = names_of(contents, PROMPT[:48], "acme")
    assert set(contents.names()) == set(names)
    assert contents.num_names() == 3
    contents.apply(decode_batch(form([removed([b"c"])])))
    assert set(contents.names()) == set(names[:2])
    contents.apply(decode_batch(form([CLEARED])))
    assert contents.names() == []


def test_names_of_blocks_of_16_tokens_are_those_of_own_groups() -> None:
    contents = VllmContents("f00d", kv_format="fp32")
    apply(contents, stored([1], None, PROMPT[:16], salt="acme"))
    root = kv_hash.root("f00d", "fp32", "acme")
    assert contents.names() == [kv_hash.extend(root, PROMPT[:16])]


def test_blocks_have_the_guests_size() -> None:
    contents = VllmContents("f00d", sharing="all")
    apply(contents, stored([1, 2], None, PROMPT[:64], 32))
    assert contents.naming().block_tokens == 32
    assert set(contents.names()) == set(names_of(contents, PROMPT[:64], "whoever"))


def test_tenants_are_kept_apart_by_their_salt() -> None:
    contents = VllmContents("f00d")
    apply(contents, stored([1], None, PROMPT[:16], salt="acme"), stored([2], None, PROMPT[:16], salt="beta"))
    assert set(contents.names()) == {
        *names_of(contents, PROMPT[:16], "acme"), *names_of(contents, PROMPT[:16], "beta")
    }  # fmt: skip
    assert len(contents.names()) == 2


def test_what_cannot_be_named_is_not_claimed() -> None:
    contents = VllmContents("f00d")
    tokens = PROMPT[:16]
    apply(contents, stored([1], None, tokens))  # no salt: whose it is, is not known
    apply(contents, stored([2], b"unknown parent", tokens))
    apply(contents, stored([3], None, tokens) | {"extra_keys": [["picture-1", "acme"]]})
    apply(contents, stored([4], None, tokens) | {"extra_keys": None})
    apply(contents, stored([5], None, tokens, salt="acme", lora_id=7))  # an adapter without a name
    assert contents.names() == []
    assert contents.num_unnamed == 5
    apply(contents, stored([6, 7], None, PROMPT[:32], salt="acme") | {"extra_keys": [["acme"], ["picture"]]})
    assert contents.names() == names_of(contents, tokens, "acme")


def test_blocks_elsewhere_and_of_layers_with_a_window_are_passed_over() -> None:
    contents = VllmContents("f00d", sharing="all")
    apply(
        contents,
        stored([1], None, PROMPT[:16], medium="CPU"),
        stored([2], None, PROMPT[:16], group_idx=1, kv_cache_spec_kind="sliding_window"),
        stored([3], None, PROMPT[:16], group_idx=2, kv_cache_spec_sliding_window=128),
    )
    assert contents.names() == []
    apply(contents, stored([1], None, PROMPT[:16], group_idx=0, kv_cache_spec_kind="full_attention"))
    apply(contents, removed([1], group_idx=1), removed([1], group_idx=0) | {"medium": "CPU"})
    assert contents.num_names() == 1
    apply(contents, removed([1], group_idx=0))
    assert contents.num_names() == 0


def test_an_adapter_has_names_of_its_own() -> None:
    contents = VllmContents("f00d", adapters={"french": "ab" * 16}.__getitem__)
    event = stored([1], None, PROMPT[:16], lora_name="french") | {"extra_keys": [["french", "acme"]]}
    apply(contents, event)
    assert contents.names() == names_of(contents, PROMPT[:16], "acme", "ab" * 16)


def test_a_copy_that_is_left_is_still_claimed() -> None:
    contents = VllmContents("f00d", sharing="all")
    apply(contents, stored([1], None, PROMPT[:16]), stored([1], None, PROMPT[:16]))
    apply(contents, removed([1], remaining_copy_counts=[1]))
    assert contents.num_names() == 1
    apply(contents, removed([1], remaining_copy_counts=[0]))
    assert contents.num_names() == 0


def test_changes_and_resets_are_reported() -> None:
    contents, resets = VllmContents("f00d", sharing="all"), list[None]()
    contents.watch_resets(lambda: resets.append(None))
    changes = BlockChanges(lambda: None)
    contents.record(changes)
    apply(contents, stored([1, 2], None, PROMPT[:32]), removed([2]))
    assert changes.take() == ([], contents.names())
    contents.reset()
    assert (contents.names(), len(resets)) == ([], 1)
    apply(contents, stored([1], None, PROMPT[:16]))
    assert changes.take() == ([], [])


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"\xc1", msgspec.msgpack.encode(7), msgspec.msgpack.encode([1.0]),
        msgspec.msgpack.encode({"ts": 1.0}), msgspec.msgpack.encode([1.0, [["BlockStored", [1], None]]]),
        msgspec.msgpack.encode([1.0, [[]]]), msgspec.msgpack.encode([1.0, [7]]),
        as_map([stored([1], None, [1, 2, 3])]), as_map([stored([1], None, [-1] * 16)]),
        as_map([removed(["text"])]),
    ],
)  # fmt: skip
def test_what_is_no_batch_is_refused(payload: bytes) -> None:
    with pytest.raises(BadBatch):
        decode_batch(payload)


@FORMS
def test_unknown_kinds_and_fields_are_passed_over(form: Any) -> None:
    known = stored([1], None, PROMPT[:16]) | {"group_idx": None, "kind": None, "window": None, "newer": 7}
    (event,) = decode_batch(form([{"type": "BlockMoved", "x": 1}, known]))
    assert type(event).__name__ == "StoredBlocks"


@pytest.mark.parametrize("joined", [True, False])
def test_the_addresses_are_found_in_vllms_arguments(joined: bool) -> None:
    text = '{"enable_kv_cache_events": true, "publisher": "zmq", "replay_endpoint": "tcp://*:5558", "hwm": 9}'
    arguments = ["--tensor-parallel-size", "2", *([f"{FLAG}={text}"] if joined else [FLAG, text])]
    config = find_kv_events(arguments)
    assert config is not None
    assert config.connects_to == ("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558")
    assert find_kv_events(["--port", "8000"]) is None
    assert find_kv_events([FLAG, '{"enable_kv_cache_events": false}']) is None
    with pytest.raises(InvalidRequest, match=FLAG):
        find_kv_events([FLAG, "{"])


@pytest.mark.parametrize(
    ("given", "events", "replays"),
    [
        ("", "ipc:///private/events", "ipc:///private/replays"),
        (', "endpoint": "tcp://*:5557"', "tcp://127.0.0.1:5557", "ipc:///private/replays"),
        (', "replay_endpoint": null', "ipc:///private/events", ""),
    ],
)
def test_events_go_to_private_sockets_unless_addresses_are_given(
    given: str, events: str, replays: str
) -> None:
    text = f'{{"enable_kv_cache_events": true, "topic": "kv", "hwm": 9{given}}}'
    arguments = with_addresses(["--max-model-len", "64", FLAG, text], Path("/private"))
    config = find_kv_events(arguments)
    assert config is not None
    assert (config.connects_to, config.topic) == ((events, replays), "kv")
    assert '"hwm":9' in arguments[-1]


def test_without_zeromq_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    kv = kv_of_own_vllm([FLAG, '{"enable_kv_cache_events": true}'], "tenant")
    assert kv is not None
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(EngineRefused, match="install the extra `vllm-events`"):
        kv.prepare([])


@pytest.mark.parametrize(("text", "sharing"), [("{}", "tenant"), ('{"enable_kv_cache_events": true}', "off")])
def test_a_vllm_without_events_or_without_a_cache_is_not_followed(text: str, sharing: PrefixSharing) -> None:
    assert kv_of_own_vllm([FLAG, text], sharing) is None
