"""The encoded bytes of every message stay the same, and new fields do not break older peers."""

import json

import msgpack
import msgspec
import pytest

from shared import messages
from shared.codec import decode, encode
from shared.messages import Wire
from shared.messages.frames import Frame
from tests.contract.golden_messages import EXAMPLES, GOLDEN_FILE

GOLDEN: dict[str, str] = json.loads(GOLDEN_FILE.read_text())
NAMES = [type(example).__name__ for example in EXAMPLES]


def all_kinds(kind: type[Wire]) -> set[type[Wire]]:
    below = {kind for kind in kind.__subclasses__() if kind.__module__.startswith("shared.messages")}
    return below.union(*(all_kinds(one) for one in below))


def test_every_message_has_an_example_and_is_exported() -> None:
    kinds = {kind.__name__ for kind in all_kinds(Wire) - {Frame}}
    assert set(NAMES) == kinds == set(GOLDEN)
    assert kinds <= set(messages.__all__)
    assert len(NAMES) == len(set(NAMES))


@pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)
def test_bytes_are_golden_and_come_back(example: Wire) -> None:
    data = bytes.fromhex(GOLDEN[type(example).__name__])
    assert encode(example).hex() == data.hex()
    assert decode(data, type(example)) == example


@pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)
def test_examples_fill_every_field(example: Wire) -> None:
    for field in msgspec.structs.fields(example):
        if field.name == "seq" and isinstance(example, messages.Accepted):
            continue  # always 0
        if field.name in ("prompt", "prompt_token_ids"):
            continue  # exactly one of the three kinds of prompt is given
        default = field.default if field.default is not msgspec.NODEFAULT else object()
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        assert getattr(example, field.name) != default, f"{field.name} has its default"


@pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)
def test_fields_of_newer_peers_are_ignored(example: Wire) -> None:
    raw = msgpack.unpackb(encode(example), strict_map_key=False)
    raw["a_field_from_the_future"] = {"deep": [1, 2, 3]}
    assert decode(msgpack.packb(raw), type(example)) == example


@pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)
def test_fields_with_defaults_may_be_missing(example: Wire) -> None:
    fields = msgspec.structs.fields(example)
    required = {field.encode_name for field in fields if field.required}
    raw = msgpack.unpackb(encode(example), strict_map_key=False)
    kept = {key: value for key, value in raw.items() if key in required or key == "type"}
    shortest = decode(msgpack.packb(kept), type(example))
    assert msgpack.unpackb(encode(shortest), strict_map_key=False) == kept
