"""The fixture `port`: an engine that is started, with what the leader's scheduler makes of it."""

from collections.abc import AsyncIterator

import pytest

from services.worker.rank_protocol.engine_info import EngineInfo
from services.worker.rank_protocol.plan import Engine
from tests.contract.engine_port.engines import PortEngine
from tests.kits.guests.port_runs import Ended, PortRun


class Port:
    """An engine under test.

    Attributes:
        run: Of this start; `again` makes one of the next.
        prompt: A prompt that it answers with some tokens.
    """

    def __init__(self, engine: Engine, info: EngineInfo, prompt: list[int]) -> None:
        self.engine = engine
        self.info = info
        self.prompt = prompt
        self.run = PortRun(engine, info)

    async def again(self) -> None:
        """Stops the engine and starts it again."""
        await self.engine.stop()
        self.info = await self.engine.start()
        self.run = PortRun(self.engine, self.info)

    async def greedy(self, max_tokens: int = 12) -> Ended:
        """The answer to the prompt, computed alone."""
        return await self.run.generate(self.prompt, max_tokens)


@pytest.fixture
async def port(request: pytest.FixtureRequest) -> AsyncIterator[Port]:
    case: PortEngine = request.param
    async with case.make() as engine:
        yield Port(engine, await engine.start(), list(case.prompt))
        await engine.stop()
