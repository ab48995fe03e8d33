"""Two leaders with one group name: a stream has frames of one instance, which alone gets its commands."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from services.worker.null.engine import NullEngine
from shared import codec, subjects
from shared.bus import Message, RequestTimedOut
from shared.client import InferenceClient
from shared.client.generation.commands import AskResend, SendCancel
from shared.client.generation.generation_state import GenerationState
from shared.client.settings import ClientSettings
from shared.codec import pack_tokens
from shared.messages import (
    Accepted,
    Cancel,
    Delta,
    GenerateRequest,
    Resend,
    ResendReply,
    Route,
    Tokens,
    Work,
)
from tests.kits.client import client_context
from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.leader import Kit, chat, null_engine
from tests.kits.worker.options import scheduler_limits


def make() -> GenerationState:
    request = GenerateRequest(request_id="r1", model="m", prompt="p")
    return GenerationState(request, client_context(ClientSettings()), now=0.0, deadline=100.0, max_ready=1024)


def accepted(instance: str) -> Accepted:
    return Accepted(request_id="r1", group="g0", instance_id=instance)


def tokens(seq: int, token: int) -> Tokens:
    return Tokens(request_id="r1", seq=seq, deltas=[Delta(text="x", token_ids=pack_tokens([token]))])


def attempts_stopped(state: GenerationState) -> list[int]:
    deltas = [delta for frame in state.answer.ready for delta in frame.deltas]
    return [token for delta in deltas for token in codec.unpack_tokens(delta.token_ids)]


def test_frames_of_another_instance_of_the_same_name_count_for_nothing() -> None:
    state = make()
    assert state.on_frame(accepted("a"), "g0", 0.0, "a") == ()
    assert state.on_frame(accepted("b"), "g0", 0.0, "b") == (SendCancel("g0", 0, "b"),)
    for seq in (1, 2, 3):  # the other instance is faster
        assert state.on_frame(tokens(seq, 9), "g0", 0.0, "b") == ()
        assert state.on_frame(tokens(seq, seq), "g0", 0.0, "a") == ()
    assert attempts_stopped(state) == [1, 2, 3]


def test_whose_tokens_come_first_has_the_attempt_though_the_other_accepts_later() -> None:
    state = make()
    state.on_frame(tokens(1, 1), "g0", 0.0, "a")  # frame 0 has not arrived yet
    assert state.on_frame(accepted("b"), "g0", 0.0, "b") == (SendCancel("g0", 0, "b"),)
    state.on_frame(accepted("a"), "g0", 0.0, "a")
    assert attempts_stopped(state) == [1]
    assert state.answer.accepted == accepted("a")


def test_what_is_asked_and_cancelled_names_the_instance() -> None:
    state = make()
    state.on_frame(accepted("a"), "g0", 0.0, "a")
    assert state.on_frame(tokens(2, 2), "g0", 0.0, "a") == (AskResend("g0", 1, "a"),)
    assert state.cancel() == (SendCancel("g0", 0, "a"),)


async def test_a_leader_ignores_what_is_meant_for_another_one_of_its_name(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus, null_engine(delay_s=0.01)) as kit:
        request = chat("r", sampling={"max_tokens": 500})
        work = Work(
            request=codec.encode(request),
            route=Route(group="g0", reason="test"),
            reply_to=kit.inbox,
            instance_id="another",
        )
        await memory_bus.publish(subjects.work("g0"), codec.encode(work))
        await kit.until(lambda: kit.metric("misdirected_messages_total", subject="work") == 1)
        assert not kit.frames

        await kit.ask(request)
        await kit.until(lambda: len(kit.frames["r"]) > 2)
        cancel = Cancel(request_id="r", instance_id="another")
        await memory_bus.publish(subjects.cancel("g0"), codec.encode(cancel))
        with pytest.raises(RequestTimedOut):
            await memory_bus.request(
                subjects.resend("g0"),
                codec.encode(Resend(request_id="r", from_seq=0, instance_id="another")),
                timeout_s=0.1,
            )
        assert kit.metric("misdirected_messages_total", subject="cancel") == 1
        answer = await memory_bus.request(
            subjects.resend("g0"),
            codec.encode(Resend(request_id="r", from_seq=0, instance_id="i")),
            timeout_s=1.0,
        )
        assert codec.decode(answer.data, ResendReply).known
        await memory_bus.publish(subjects.cancel("g0"), codec.encode(Cancel(request_id="r", instance_id="i")))
        assert (await kit.end_of("r"))[-1].code == "cancelled"  # type: ignore[union-attr]


async def test_no_stream_is_a_mixture_of_two_groups_of_one_name(memory_bus: MemoryBus) -> None:
    """The work of an old router names no instance, so both leaders start every request."""
    async with AsyncExitStack() as stack:
        other_weights = NullEngine(
            tokens=list(b"#"), num_blocks=256, vocab_size=257, context_length=2048, step_delay_s=0.002
        )
        engines = [null_engine(delay_s=0.006), other_weights]
        budgets = [4096, 64]  # the first starts sooner, the second overtakes it
        kits = [
            await stack.enter_async_context(
                Kit(memory_bus, engine, instance_id=name, steps=scheduler_limits(budget, 64, 64))
            )
            for engine, name, budget in zip(engines, "ab", budgets, strict=True)
        ]
        client = InferenceClient(memory_bus)
        await client.start()
        stack.push_async_callback(client.close)

        async def route(message: Message) -> None:
            request = codec.decode(message.data, GenerateRequest)
            await kits[0].bus.publish(
                subjects.work("g0"),
                codec.encode(
                    Work(
                        request=message.data,
                        route=Route(group="g0", reason="test"),
                        reply_to=request.reply_to,
                    )
                ),
            )

        await memory_bus.subscribe(subjects.GENERATE_ALL, route)
        answers = await asyncio.gather(
            *(
                client.complete(chat(f"r{number}", sampling={"max_tokens": 48}), timeout_s=20)
                for number in range(48)
            )
        )
        texts = [answer.choices[0].text for answer in answers]
        assert all(set(text) == {"#"} or "#" not in text for text in texts), texts
        for kit in kits:
            await kit.all_free()
