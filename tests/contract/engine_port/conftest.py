"""The fixture `port`: an engine that is started, with what the leader's scheduler makes of it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from services.worker.rank_protocol.engine_info import EngineInfo
from services.worker.rank_protocol.plan import Engine
from tests.contract.engine_port.engines import PortEngine
from tests.contract.engine_port.kept_engine import KeptEngine
from tests.kits.guests.port_runs import Ended, PortRun


class Port:
    """An engine under test.

    Attributes:
        run: Of this start; `again` makes one of the next.
        prompt: A prompt that it answers with some tokens.
        declared: What the tests are run for.
        model: What the leader reads of its model.
    """

    def __init__(self, engine: Engine, info: EngineInfo, case: PortEngine) -> None:
        self.engine = engine
        self.info = info
        self.prompt = list(case.prompt)
        self.declared = case.abilities
        self.model = case.model()
        self.run = PortRun(engine, info)

    async def again(self) -> None:
        """Stops the engine and starts it again."""
        await self.engine.stop()
        self.info = await self.engine.start()
        self.run = PortRun(self.engine, self.info)

    async def greedy(self, max_tokens: int = 12) -> Ended:
        """The answer to the prompt, computed alone."""
        return await self.run.generate(self.prompt, max_tokens)


class KeptEngines:
    """The engines that are slow to start; they go on from test to test."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._engines: dict[object, KeptEngine] = {}  # by what makes them

    async def get(self, case: PortEngine) -> KeptEngine:
        if case.make not in self._engines:
            engine = KeptEngine(await self._stack.enter_async_context(case.make()))
            self._stack.push_async_callback(engine.stop)
            self._engines[case.make] = engine
        return self._engines[case.make]


@pytest_asyncio.fixture(loop_scope="package", scope="package")
async def kept() -> AsyncIterator[KeptEngines]:
    async with AsyncExitStack() as stack:
        yield KeptEngines(stack)


@pytest_asyncio.fixture(loop_scope="package")
async def port(request: pytest.FixtureRequest, kept: KeptEngines) -> AsyncIterator[Port]:
    case: PortEngine = request.param
    if case.kept:
        shared = await kept.get(case)
        yield Port(shared, await shared.start(), case)
        await shared.end_test()
        return
    async with case.make() as engine:
        yield Port(engine, await engine.start(), case)
        await engine.stop()
