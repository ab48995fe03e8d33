"""Numbers at the limits of their range are refused or used, and the leader continues."""

from typing import Any

import msgpack
import pytest

from shared import codec, subjects
from shared.messages import Done, Failed, Route, Work
from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.leader import Kit, chat

FIELDS = [
    ("sampling", "top_k"),
    ("sampling", "max_tokens"),
    ("sampling", "seed"),
    ("sampling", "n"),
    ("sampling", "logprobs"),
    ("sampling", "logit_bias"),
    ("session", "if_version"),
    ("resume", "next_seq"),
    ("resume", "session_version"),
    ("priority",),
]


@pytest.mark.parametrize("field", FIELDS, ids=".".join)
@pytest.mark.parametrize("number", [2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1, -(2**63)])
async def test_a_large_number(memory_bus: MemoryBus, field: tuple[str, ...], number: int) -> None:
    async with Kit(memory_bus) as kit:
        fields: dict[str, Any] = msgpack.unpackb(codec.encode(chat("r", session={"session_id": "s"})))
        if field[0] == "resume":
            fields |= {"attempt": 1, "resume": {"token_ids": [b""], "next_seq": 0}}
        inner = fields
        for name in field[:-1]:
            inner = inner[name]
        inner[field[-1]] = {number: 1.0} if field[-1] == "logit_bias" else number
        work = Work(request=msgpack.packb(fields), route=Route(group="g0", reason="test"), reply_to=kit.inbox)
        await memory_bus.publish(subjects.work("g0"), codec.encode(work))
        await kit.until(lambda: bool(kit.frames["r"]))
        assert isinstance((await kit.run(chat("other")))[-1], Done)
        await kit.until(lambda: any(isinstance(frame, Done | Failed) for frame in kit.frames["r"]))
        await kit.all_free()
