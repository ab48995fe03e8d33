"""One request after the other in a task, for transports whose client libraries wait for answers."""

import asyncio
from abc import ABC, abstractmethod

from benchmarks.serving.connection import REOPEN_DELAY_S, LoadTarget, Recorder


class RequestLoop(ABC):
    """Keeps exactly one request in flight.

    Attributes:
        idle: Set while no answer is due.
    """

    def __init__(self, target: LoadTarget, recorder: Recorder) -> None:
        self._target = target
        self._recorder = recorder
        self._task: asyncio.Task[None] | None = None
        self.idle = asyncio.Event()
        self.idle.set()

    def open(self) -> None:
        """Send requests in the background until the recorder is stopping."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """End, whatever it waits for."""
        self.idle.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @abstractmethod
    async def _ask(self) -> str:
        """Send requests and wait for the answers; returns what is wrong with the connection, or nothing."""

    async def _run(self) -> None:
        while not self._recorder.stopping:
            try:
                problem = await self._ask()
            finally:
                self.idle.set()
            if problem:
                self._recorder.count_problem(problem)
                await asyncio.sleep(REOPEN_DELAY_S)
