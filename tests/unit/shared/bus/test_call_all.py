"""A request to all that listen on a subject."""

import asyncio

import pytest

from shared.bus import Message, NoResponders
from shared.bus.call_all import call_all
from shared.bus.endpoint import Endpoint
from shared.errors import InvalidRequest, RyzError
from shared.messages import ModelManaged, PutModel
from tests.kits.memory_bus import MemoryBus
from tests.kits.waiting import PATIENCE_S

SUBJECT = "test.all"


async def answer_as(bus: MemoryBus, host: str, *, after_s: float = 0.0, refused: str = "") -> None:
    """One that listens; without a name it does not answer."""

    async def answer(_: PutModel, __: Message) -> ModelManaged | None:
        await asyncio.sleep(after_s)
        if not host:
            return None
        if refused:
            raise InvalidRequest(refused, host=host)
        return ModelManaged(model="demo", host=host)

    handler = Endpoint(bus).handler(PutModel, answer)
    await bus.subscribe(SUBJECT, handler, max_concurrent=4)


async def ask(
    bus: MemoryBus, expected: int, timeout_s: float = 10 * PATIENCE_S, more_s: float = 10 * PATIENCE_S
) -> list[str]:
    """Who has answered, and with which refusal."""
    replies = await call_all(
        bus, SUBJECT, PutModel(entry="{}"), ModelManaged,
        expected=expected, timeout_s=timeout_s, more_s=more_s,
    )  # fmt: skip
    return [one.message if isinstance(one, RyzError) else one.host for one in replies]


async def test_all_answer_and_errors_are_answers(memory_bus: MemoryBus) -> None:
    await answer_as(memory_bus, "late", after_s=0.05)
    await answer_as(memory_bus, "never", after_s=0.02, refused="it is not here")
    await answer_as(memory_bus, "soon")
    async with asyncio.timeout(PATIENCE_S):
        assert await ask(memory_bus, 3) == ["soon", "it is not here", "late"]


async def test_those_that_stay_silent_are_waited_for_a_while(memory_bus: MemoryBus) -> None:
    await answer_as(memory_bus, "soon")
    await answer_as(memory_bus, "")
    async with asyncio.timeout(PATIENCE_S):
        assert await ask(memory_bus, 2, more_s=0.1) == ["soon"]
        assert await ask(memory_bus, 1) == ["soon"]


async def test_none_answers_or_none_listens(memory_bus: MemoryBus) -> None:
    with pytest.raises(NoResponders):
        await ask(memory_bus, 1)
    await answer_as(memory_bus, "")
    async with asyncio.timeout(PATIENCE_S):
        assert await ask(memory_bus, 1, timeout_s=0.1) == []
