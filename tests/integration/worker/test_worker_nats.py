"""The leader over a real broker."""

import asyncio
import random

import pytest

from shared import codec, subjects
from shared.bus.nats import NatsBus
from shared.messages import Accepted, Cancel, Done, Resend, ResendReply
from tests.kits.waiting import PATIENCE_S
from tests.kits.worker.leader import Kit, chat, null_engine, text_of
from tests.kits.worker.options import scheduler_limits


async def test_a_chat_over_a_real_broker(nats_bus: NatsBus) -> None:
    async with Kit(nats_bus, group="wn0") as kit:
        for delivery in ("stream", "whole"):
            frames = await kit.run(chat(delivery, delivery=delivery))
            assert isinstance(frames[0], Accepted)
            assert isinstance(frames[-1], Done)
            assert len(text_of(frames)) == 16
        await kit.all_free()


async def test_200_callers_a_third_of_them_leaves(nats_bus: NatsBus) -> None:
    chance = random.Random(2)
    engine = null_engine(blocks=120, delay_s=0.0005)
    async with Kit(nats_bus, engine, group="wn1", steps=scheduler_limits(256, 64, 200)) as kit:
        names = [f"r{number}" for number in range(200)]
        leaving = set(chance.sample(names, 67))

        async def call(name: str) -> None:
            await asyncio.sleep(chance.random() * 0.1)
            await kit.ask(chat(name, sampling={"max_tokens": chance.randint(5, 60)}))
            if name in leaving:
                await asyncio.sleep(chance.random() * 0.05)
                await kit.bus.publish(subjects.cancel("wn1"), codec.encode(Cancel(request_id=name)))

        await asyncio.gather(*map(call, names))
        for name in names:
            assert isinstance((await kit.end_of(name))[-1], Done) or name in leaving
        await kit.all_free()
        assert kit.metric("engine_failures_total") == 0
    assert len(asyncio.all_tasks()) < 12


async def test_large_answers_are_split_and_sent_again_in_parts(nats_bus: NatsBus) -> None:
    async with Kit(nats_bus, null_engine(blocks=2048, context=2048), group="wn2") as kit:
        sampling = {"n": 16, "max_tokens": 900, "logprobs": 20}
        frames = list(await kit.run(chat("big", delivery="whole", sampling=sampling)))
        assert len(text_of(frames, 15)) == 900
        got: list[object] = []
        while len(got) < len(frames):
            asked = Resend(request_id="big", from_seq=len(got))
            message = await nats_bus.request(
                subjects.resend("wn2"), codec.encode(asked), timeout_s=PATIENCE_S
            )
            reply = codec.decode_reply(message.data, ResendReply)
            assert reply.frames
            got += reply.frames
        assert got == frames


@pytest.mark.parametrize("kind", ["work", "cancel", "resend"])
async def test_nonsense_over_a_real_broker(nats_bus: NatsBus, kind: str) -> None:
    async with Kit(nats_bus, group="wn3") as kit:
        for data in (b"", b"\xc1", b"\xde\xff\xff", bytes(range(256))):
            await nats_bus.publish(getattr(subjects, kind)("wn3"), data)
        assert isinstance((await kit.run(chat("r")))[-1], Done)
        assert kit.metric("bad_messages_total", subject=kind) == 4
