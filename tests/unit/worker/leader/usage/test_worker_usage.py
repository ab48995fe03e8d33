"""What a leader writes to the ledger of usage: once for each run that ends there, before its last frame."""

from typing import Any

import pytest

from services.worker.null.engine import TEXT
from shared import codec, streams, subjects
from shared.bus.api import Message
from shared.codec import pack_tokens
from shared.messages import (
    Cancel,
    Done,
    Failed,
    FrameBatch,
    GenerateRequest,
    GroupDown,
    UsageRecord,
)
from shared.messages.base import BACKGROUND_PRIORITY
from tests.kits.memory_bus import MemoryBus
from tests.kits.tenants.ledger import MemoryLedger
from tests.kits.waiting import until
from tests.kits.worker.leader import Kit, chat, null_engine


@pytest.fixture
async def ledger(memory_bus: MemoryBus) -> MemoryLedger:
    stream = MemoryLedger(memory_bus)
    await stream.start()
    return stream


async def ended(kit: Kit, ledger: MemoryLedger, request: GenerateRequest, **more: Any) -> UsageRecord:
    """The only new record of a request that runs to its end."""
    before = len(ledger.records)
    await kit.ask(request, **more)
    await kit.end_of(request.request_id)
    await until(lambda: len(ledger.records) == before + 1)
    return ledger.records[-1]


def prompt(name: str, **fields: Any) -> GenerateRequest:
    given: dict[str, Any] = {"request_id": name, "model": "demo", "prompt": "hello", "tenant": "acme"}
    return codec.convert({**given, **fields}, GenerateRequest)


async def test_a_request_that_is_done(memory_bus: MemoryBus, ledger: MemoryLedger) -> None:
    async with Kit(memory_bus, null_engine(delay_s=0.01)) as kit:
        request = prompt("r", sampling={"max_tokens": 7}, key_id="0123456789ab")
        record = await ended(kit, ledger, request)
        done = kit.frames["r"][-1]
        assert isinstance(done, Done)
        assert (record.request_id, record.tenant, record.key_id) == ("r", "acme", "0123456789ab")
        assert (record.model, record.outcome, record.batch) == ("demo", "done", False)
        assert record.completion_tokens == done.usage.completion_tokens == 7
        assert record.prompt_tokens == done.usage.prompt_tokens > 0
        assert record.compute_ms > 0
        assert record.ended_ms > 1_700_000_000_000


async def test_the_record_is_sent_before_the_last_frame(memory_bus: MemoryBus) -> None:
    order: list[str] = []

    async def note(message: Message) -> None:
        if message.subject == streams.usage("acme"):
            order.append("record")
        elif message.subject == kit.inbox and any(
            isinstance(one, Done) for one in codec.decode(message.data, FrameBatch).frames
        ):
            order.append("done")

    async with Kit(memory_bus) as kit:
        await memory_bus.subscribe(">", note)  # one subscription has messages in their order
        await memory_bus.flush()
        await kit.ask(prompt("r", sampling={"max_tokens": 3}))
        await until(lambda: len(order) == 2)
        assert order == ["record", "done"]


async def test_choices_count_together_and_the_prompt_once(
    memory_bus: MemoryBus, ledger: MemoryLedger
) -> None:
    async with Kit(memory_bus) as kit:
        one = await ended(kit, ledger, prompt("a", sampling={"max_tokens": 5}))
        three = await ended(kit, ledger, prompt("b", sampling={"max_tokens": 5, "n": 3}))
        assert (three.prompt_tokens, three.completion_tokens) == (one.prompt_tokens, 15)


async def test_a_resumed_run_counts_the_whole_answer_and_the_prompt_once(
    memory_bus: MemoryBus, ledger: MemoryLedger
) -> None:
    async with Kit(memory_bus) as kit:
        whole = await ended(kit, ledger, prompt("a", sampling={"max_tokens": 9}))
        resume = {"token_ids": [pack_tokens(list(TEXT.encode()[:4]))], "next_seq": 5}
        resumed = prompt("b", sampling={"max_tokens": 9}, attempt=1, resume=resume)
        record = await ended(kit, ledger, resumed)
        assert (record.prompt_tokens, record.completion_tokens) == (whole.prompt_tokens, 9)


async def test_an_embedding(memory_bus: MemoryBus, ledger: MemoryLedger) -> None:
    async with Kit(memory_bus) as kit:
        plain = await ended(kit, ledger, prompt("a", sampling={"max_tokens": 1}))
        record = await ended(kit, ledger, prompt("b", embedding={}))
        assert record.embedded_tokens == plain.prompt_tokens
        assert (record.prompt_tokens, record.cached_tokens, record.completion_tokens) == (0, 0, 0)


async def test_a_prompt_without_an_answer(memory_bus: MemoryBus, ledger: MemoryLedger) -> None:
    async with Kit(memory_bus) as kit:
        record = await ended(kit, ledger, prompt("a", prompt_only=True, echo=True))
        assert record.prompt_tokens > 0
        assert record.completion_tokens == 0


async def test_a_cancelled_request_counts_what_was_made(memory_bus: MemoryBus, ledger: MemoryLedger) -> None:
    async with Kit(memory_bus, null_engine(delay_s=0.01)) as kit:
        await kit.ask(prompt("r", sampling={"max_tokens": 1000}))
        await until(lambda: len(kit.frames["r"]) > 3)
        await memory_bus.publish(subjects.cancel("g0"), codec.encode(Cancel(request_id="r")))
        failed = (await kit.end_of("r"))[-1]
        assert isinstance(failed, Failed)
        assert failed.usage is not None
        await until(lambda: bool(ledger.records))
        (record,) = ledger.records
        assert (record.outcome, record.completion_tokens) == ("cut", failed.usage.completion_tokens)


async def test_what_goes_on_elsewhere_is_written_under_the_same_id(
    memory_bus: MemoryBus, ledger: MemoryLedger
) -> None:
    async with Kit(memory_bus, null_engine(delay_s=0.01)) as kit:
        await kit.ask(prompt("r", sampling={"max_tokens": 1000}))
        await until(lambda: len(kit.frames["r"]) > 3)
        down = GroupDown(group="g0", instance_id="i", reason="silent")
        await memory_bus.publish(subjects.GROUP_DOWN, codec.encode(down))
        await kit.end_of("r")
        await until(lambda: bool(ledger.records))
        (record,) = ledger.records
        assert (record.request_id, record.outcome) == ("r", "failed")
        assert record.completion_tokens > 0


async def test_refused_and_waiting_requests_have_used_nothing(
    memory_bus: MemoryBus, ledger: MemoryLedger
) -> None:
    async with Kit(memory_bus) as kit:
        await kit.ask(prompt("long", prompt="x" * 5000))
        assert isinstance((await kit.end_of("long"))[-1], Failed)
        await memory_bus.publish(subjects.cancel("g0"), codec.encode(Cancel(request_id="early", attempt=0)))
        await kit.ask(prompt("early", sampling={"max_tokens": 5}))
        assert isinstance((await kit.end_of("early"))[-1], Failed)
        record = await ended(kit, ledger, prompt("r", sampling={"max_tokens": 2}))
        assert [one.request_id for one in ledger.records] == ["r"] == [record.request_id]


async def test_a_superseded_run_writes_nothing(memory_bus: MemoryBus, ledger: MemoryLedger) -> None:
    async with Kit(memory_bus, null_engine(delay_s=0.01)) as kit:
        await kit.ask(prompt("r", sampling={"max_tokens": 1000}))
        await until(lambda: len(kit.frames["r"]) > 3)
        await kit.ask(prompt("r", sampling={"max_tokens": 6}, attempt=1))
        await until(lambda: bool(ledger.records))
        assert [(one.outcome, one.completion_tokens) for one in ledger.records] == [("done", 6)]


async def test_a_line_of_a_batch_and_a_repeated_call_keep_their_id(
    memory_bus: MemoryBus, ledger: MemoryLedger
) -> None:
    async with Kit(memory_bus) as kit:
        for name in ("r1", "r2"):
            line = prompt(
                name, usage_id="batch_req_1", priority=BACKGROUND_PRIORITY, sampling={"max_tokens": 2}
            )
            record = await ended(kit, ledger, line)
            assert (record.request_id, record.batch) == ("batch_req_1", True)
        calls = [
            await ended(
                kit, ledger, prompt(name, call_key="k", call_digest=digest, sampling={"max_tokens": 2})
            )
            for name, digest in (("r3", "d"), ("r4", "d"), ("r5", "other"))
        ]
        assert calls[0].request_id == calls[1].request_id != calls[2].request_id


async def test_a_caller_outside_cannot_hide_a_request_behind_the_id_of_another(
    memory_bus: MemoryBus, ledger: MemoryLedger
) -> None:
    """An equal request has the same answer, and is another run of the first one."""
    same: dict[str, Any] = {"usage_id": "u", "sampling": {"max_tokens": 2}}
    others = [same | {"prompt": "other"}, same | {"sampling": {"max_tokens": 2, "seed": 1}}]
    async with Kit(memory_bus, retention_s=0.0) as kit:
        for number, fields in enumerate([same, same, *others]):
            await kit.ask(prompt("r", **fields, attempt=number), outside=True)
            await until(lambda number=number: len(ledger.records) == number + 1)  # type: ignore[misc]
        first, second, *rest = (record.request_id for record in ledger.records)
        assert first == second
        assert len({first, *rest}) == 3
        assert all(name.startswith("r-") for name in (first, *rest))


async def test_a_leader_that_stops_waits_for_its_records(memory_bus: MemoryBus, ledger: MemoryLedger) -> None:
    async with Kit(memory_bus, null_engine(delay_s=0.01)) as kit:
        await kit.ask(chat("r", sampling={"max_tokens": 1000}))
        await until(lambda: len(kit.frames["r"]) > 3)
    assert [record.request_id for record in ledger.records] == ["r"]
    assert kit.leader.parts.ledger.num_waiting == 0
