"""A leader serves requests with adapters beside those of the base."""

import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from services.worker.domain.generation.failure_owners import owner_of
from services.worker.null.adapter_files import inspect_null_adapter
from services.worker.null.adapters import shift_of
from services.worker.null.engine import TEXT
from shared import codec, subjects
from shared.bus.api import Message, NoResponders
from shared.bus.endpoint import call
from shared.errors import InvalidRequest, Unavailable
from shared.messages import (
    Accepted,
    AdapterInspected,
    AnyFrame,
    Done,
    Heartbeat,
    HoldersQuery,
    Holding,
    InspectAdapter,
    ResumePoint,
    SessionRef,
    Tokenized,
    TokenizeQuery,
    Warmed,
    WarmSession,
)
from tests.kits.memory_bus import MemoryBus
from tests.kits.waiting import PATIENCE_S
from tests.kits.worker.adapters.registered import registered
from tests.kits.worker.kv_tier import Group, Store
from tests.kits.worker.leader import Kit, chat, text_of, tokens_of
from tests.kits.worker.options import scheduler_limits

LONG = "x" * 100  # several blocks of the null model's tokens


def done(frames: Sequence[AnyFrame]) -> Done:
    last = frames[-1]
    assert isinstance(last, Done), last
    return last


async def test_each_adapter_and_the_base_answer_in_one_batch(kit: Kit, tmp_path: Path) -> None:
    adapters = {name: registered(tmp_path, name) for name in ("de", "fr")}
    for name, adapter in adapters.items():
        await kit.ask(chat(name, model=adapter.model), adapter=adapter)
    await kit.ask(chat("base"))
    frames = {name: await kit.end_of(name) for name in ("base", *adapters)}
    texts = {name: text_of(found) for name, found in frames.items()}
    start = TEXT.index(texts["base"]) if texts["base"] in TEXT else (TEXT * 2).index(texts["base"])
    for name, adapter in adapters.items():
        shift = shift_of(adapter.fingerprint, len(TEXT))
        assert texts[name] == (TEXT * 4)[start + shift :][: len(texts[name])]
        accepted = frames[name][0]
        assert isinstance(accepted, Accepted)
        assert accepted.fingerprint == f"null+{adapter.fingerprint}/fp32"
    assert len(set(texts.values())) == 3
    accepted = frames["base"][0]
    assert isinstance(accepted, Accepted)
    assert accepted.fingerprint == "null/fp32"
    shown = kit.leader.detail()["adapters"]
    assert isinstance(shown, dict)
    assert shown["loaded"] == 2
    assert shown["bytes"] == sum(adapter.num_bytes for adapter in adapters.values())
    beats: list[Heartbeat] = []

    async def on_beat(message: Message) -> None:
        beats.append(codec.decode(message.data, Heartbeat))

    await kit.bus.subscribe(subjects.heartbeat("g0"), on_beat)
    names = {adapter.fingerprint for adapter in adapters.values()}
    await kit.until(lambda: bool(beats) and set(beats[-1].adapters) == names)
    assert kit.metric("adapter_loads_total", outcome="loaded") == 2
    assert kit.metric("adapter_loaded") == 2


async def test_files_that_cannot_be_loaded_are_the_requests_fault(kit: Kit, tmp_path: Path) -> None:
    adapter = registered(tmp_path, "gone")
    (tmp_path / "gone" / "adapter_model.safetensors").unlink()
    (tmp_path / "gone").rmdir()
    for name in ("first", "at-once"):
        failed = await kit.failure(chat(name, model=adapter.model), adapter=adapter)
        assert failed.code == "invalid_request"
        where = "by group g0"
        said = f"the adapter of demo:gone cannot be loaded {where}: there is no file"
        assert failed.message.startswith(said)
        assert failed.data == {"param": "model", "reason": "adapter_not_loaded"}
        assert owner_of(InvalidRequest("")) == "content"
    assert kit.metric("adapter_loads_total", outcome="failed") == 1
    assert kit.leader.parts.table.counts.broken == 0
    assert text_of(await kit.run(chat("base")))


async def test_an_adapter_that_is_too_large_is_refused_before_it_waits(
    memory_bus: MemoryBus, tmp_path: Path
) -> None:
    async with Kit(memory_bus, adapter_bytes=2**20) as kit:
        adapter = registered(tmp_path, "large", num_bytes=2**20 + 1)
        failed = await kit.failure(chat("r", model=adapter.model), adapter=adapter)
    assert failed.code == "invalid_request"
    assert "takes 1,048,577 bytes" in failed.message


async def test_more_adapters_than_fit_are_served_one_after_the_other(
    memory_bus: MemoryBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # on a busy machine a sequence may run for so long that its adapter gives way, and is loaded again later
    monkeypatch.setattr("services.worker.domain.adapters.choice.CLOSE_S", PATIENCE_S)
    adapters = [registered(tmp_path, f"a{number}", num_bytes=2**20) for number in range(6)]
    async with Kit(memory_bus, adapter_bytes=2 * 2**20) as kit:
        for number, adapter in enumerate(adapters):
            await kit.ask(chat(f"r{number}", model=adapter.model), adapter=adapter)
        for number in range(6):
            done(await kit.end_of(f"r{number}"))
        assert kit.metric("adapter_evictions_total") == 4
        assert kit.metric("adapter_bytes") == 2 * 2**20
        await kit.all_free()


async def test_keys_and_values_are_never_shared_between_adapters(kit: Kit, tmp_path: Path) -> None:
    """The null engine ends if a sequence gets a block that another adapter has computed."""
    first, second = registered(tmp_path, "de"), registered(tmp_path, "fr")
    cached = []
    for number, adapter in enumerate((None, first, second, None, first, second)):
        frames = await kit.run(chat(f"r{number}", LONG), adapter=adapter)
        cached.append(done(frames).usage.cached_tokens)
    assert cached[:3] == [0, 0, 0]
    assert min(cached[3:]) > 0


async def test_nor_are_they_through_the_store(memory_bus: MemoryBus, tmp_path: Path) -> None:
    adapter, other = registered(tmp_path, "de"), registered(tmp_path, "fr")
    store: Store = {}
    made_with: dict[bytes, str] = {}
    options = {"engine": {"made_with": made_with}}
    async with Group(memory_bus, store, "g0", **options) as one:
        done(await one.run(chat("r", LONG), adapter=adapter))
        await one.until(lambda: len(store) >= 6)
    async with Group(memory_bus, store, "g1", engine={"made_with": made_with}) as two:
        for name, chosen in (("base", None), ("other", other)):
            assert done(await two.run(chat(name, LONG), adapter=chosen)).usage.fetched_tokens == 0
        assert done(await two.run(chat("same", LONG), adapter=adapter)).usage.fetched_tokens > 0


async def test_an_answer_goes_on_elsewhere_with_its_adapter_alone(
    memory_bus: MemoryBus, tmp_path: Path
) -> None:
    adapter, other = registered(tmp_path, "de"), registered(tmp_path, "fr")
    async with Kit(memory_bus, group="g0") as one, Kit(memory_bus, group="g1") as two:
        whole = await one.run(chat("whole"), adapter=adapter)
        accepted = whole[0]
        assert isinstance(accepted, Accepted)
        begun = ResumePoint(
            token_ids=[codec.pack_tokens(tokens_of(whole)[:5])],
            next_seq=3,
            fingerprint=accepted.fingerprint,
        )
        for number, wrong in enumerate((None, other)):
            request = chat(f"wrong{number}", attempt=1, resume=begun)
            failed = await two.failure(request, adapter=wrong)
            assert (failed.code, failed.data["reason"]) == ("unavailable", "other_weights")
        resumed = await two.run(chat("resumed", attempt=1, resume=begun), adapter=adapter)
        assert tokens_of(whole)[:5] + tokens_of(resumed) == tokens_of(whole)


async def test_a_turn_with_another_adapter_keeps_the_text_and_begins_its_keys_and_values_anew(
    kit: Kit, tmp_path: Path
) -> None:
    adapter = registered(tmp_path, "de")
    session = SessionRef(session_id="s")
    await kit.run(chat("t0", LONG, session=session), adapter=adapter)
    await kit.until(lambda: kit.store.records["default", "s"].version == 1)
    record = kit.store.records["default", "s"]
    assert (record.model, record.adapter) == ("demo", adapter.fingerprint)
    inbox = kit.bus
    holds = HoldersQuery(tenant="default", token_ids=record.token_ids, adapter=record.adapter)
    assert (await call(inbox, subjects.KV_HOLDERS, holds, Holding, timeout_s=PATIENCE_S)).cached_tokens
    base = HoldersQuery(tenant="default", token_ids=record.token_ids)
    assert not (await call(inbox, subjects.KV_HOLDERS, base, Holding, timeout_s=PATIENCE_S)).cached_tokens
    warm = WarmSession(tenant="default", session_id="s")
    assert (await call(inbox, subjects.warm("g0"), warm, Warmed, timeout_s=PATIENCE_S)).cached_tokens
    last = done(await kit.run(chat("t1", "and?", session=session)))
    assert last.usage.cached_tokens == 0
    assert last.session is not None
    assert last.session.turns == 2
    await kit.until(lambda: kit.store.records["default", "s"].version == 2)
    record = kit.store.records["default", "s"]
    assert record.adapter == ""
    assert LONG in record.messages[0].content


async def test_an_engine_that_starts_again_loads_adapters_again(
    memory_bus: MemoryBus, tmp_path: Path
) -> None:
    adapter = registered(tmp_path, "de")
    async with Kit(memory_bus) as kit:
        kit.expected_errors.add("the engine failed")
        before = await kit.run(chat("before"), adapter=adapter)
        await kit.engine.stop()
        failed = await kit.failure(chat("meanwhile"), adapter=adapter)
        assert failed.resumable
        await kit.until(lambda: kit.leader.state == "ready")
        after = await kit.run(chat("after"), adapter=adapter)
        assert tokens_of(after) == tokens_of(before)
        assert kit.metric("adapter_loads_total", outcome="loaded") == 2


async def test_guesses_are_checked_with_the_adapter(memory_bus: MemoryBus, tmp_path: Path) -> None:
    adapter = registered(tmp_path, "de")
    request = chat("r", TEXT * 3, sampling={"max_tokens": 90})
    async with Kit(memory_bus, group="g0") as plain:
        wanted = tokens_of(await plain.run(request, adapter=adapter))
    steps = scheduler_limits(256, 64, 64, draft_tokens=4)
    async with Kit(memory_bus, group="g1", steps=steps) as drafting:
        assert tokens_of(await drafting.run(request, adapter=adapter)) == wanted
        assert drafting.metric("spec_decode_num_accepted_tokens_total") > 0


async def test_files_are_inspected_for_routers(memory_bus: MemoryBus, tmp_path: Path) -> None:
    adapter = registered(tmp_path, "de")
    subject = subjects.inspect_adapter("demo")

    async def ask(source: str, model: str = "demo") -> AdapterInspected:
        asked = InspectAdapter(model=model, source=source)
        return await call(memory_bus, subject, asked, AdapterInspected, timeout_s=PATIENCE_S)

    async with Kit(memory_bus, inspect=inspect_null_adapter):
        found = await ask(adapter.source)
        assert (found.fingerprint, found.rank, found.num_bytes) == (
            adapter.fingerprint, 1, adapter.num_bytes
        )  # fmt: skip
        where = rf"there is no file or directory .* \(as group g0 on {socket.gethostname()} sees it\)"
        with pytest.raises(InvalidRequest, match=where):
            await ask(str(tmp_path / "none"))
        with pytest.raises(InvalidRequest, match="this subject is for model demo"):
            await ask(adapter.source, "other")
    async with Kit(memory_bus, inspect=inspect_null_adapter, adapter_bytes=0):
        with pytest.raises(InvalidRequest, match="compute without adapters"):
            await ask(adapter.source)
    async with Kit(memory_bus):  # a guest's leader: others of its model are asked
        with pytest.raises(NoResponders):
            await ask(adapter.source)


async def test_a_leader_whose_engine_starts_asks_for_another_try(memory_bus: MemoryBus) -> None:
    kit = Kit(memory_bus, inspect=inspect_null_adapter)
    await kit.leader.parts.subscriptions.subscribe_all()
    asked, subject = InspectAdapter(model="demo", source="/nowhere"), subjects.inspect_adapter("demo")
    with pytest.raises(Unavailable, match="the engine of group g0 is not up yet"):
        await call(memory_bus, subject, asked, AdapterInspected, timeout_s=PATIENCE_S)
    await kit.leader.parts.subscriptions.unsubscribe_all()


async def test_tokens_of_an_adapter_are_those_of_its_base(kit: Kit) -> None:
    query = TokenizeQuery(model="demo:de", prompt="hello")
    found = await call(kit.bus, subjects.tokenize("demo"), query, Tokenized, timeout_s=PATIENCE_S)
    assert found.count == 5
    with pytest.raises(InvalidRequest, match="this subject is for model demo"):
        await call(
            kit.bus,
            subjects.tokenize("demo"),
            TokenizeQuery(model="demon:de", prompt="hello"),
            Tokenized,
            timeout_s=PATIENCE_S,
        )
