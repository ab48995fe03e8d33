"""Load of many sessions on a real stack: how evenly a policy spreads the work, and what KV it still finds.

A closed loop: each of a number of clients draws a session (`session_traffic.py`), says something, reads the
answer, and draws again. Every session speaks once before that, and a warm-up passes before anything counts.
A turn counts if it began in the measured time. How a stack comes up is decided elsewhere.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from benchmarks.sessions.session_client import SessionClient, TurnFailed
from benchmarks.sessions.session_figures import Measured
from benchmarks.sessions.session_metrics import read_all
from benchmarks.sessions.session_traffic import Conversations, Draw, Message, Traffic, draws, openings

Progress = Callable[[str], None]


class BenchFailed(Exception):
    """There is no figure; the text says why."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Where to ask, and for how long. pids: of the stack's services by their names."""

    url: str
    model: str
    pids: Mapping[str, int]
    traffic: Traffic
    clients: int = 16
    warmup_s: float = 20.0
    duration_s: float = 60.0

    @property
    def groups(self) -> list[str]:
        """The names of the worker groups."""
        return [name.removeprefix("worker-") for name in self.pids if name.startswith("worker-")]


async def measure(plan: Plan, progress: Progress) -> Measured:
    """One stack's turns; `progress` is told what begins.

    Raises:
        BenchFailed: no turn was answered.
        MetricsMissing: a service does not tell its metrics.
    """
    load = _Load(plan)
    try:
        progress("every session speaks once")
        await load.open_sessions()
        async with asyncio.TaskGroup() as clients:
            for _ in range(plan.clients):
                clients.create_task(load.keep_asking())
            progress("warm-up")
            await asyncio.sleep(plan.warmup_s)
            before, began = await read_all(plan.pids), time.perf_counter()
            progress("measuring")
            load.measured = Measured(0.0, plan.groups, before=before)
            await asyncio.sleep(plan.duration_s)
            load.stopping = True
            load.measured.seconds = time.perf_counter() - began
            load.measured.after = await read_all(plan.pids)
    finally:
        await load.client.close()
    if not load.measured.answers:
        kinds = ", ".join(load.measured.problems) or "nothing came back"
        raise BenchFailed(f"no turn was answered: {kinds}")
    return load.measured


@dataclass(slots=True)
class _Load:
    """The clients' common state; `measured` is exchanged for a fresh one when the warm-up is over."""

    plan: Plan
    client: SessionClient = field(init=False)
    measured: Measured = field(init=False)
    stopping: bool = False
    _draws: Iterator[Draw] = field(init=False)
    _conversations: Conversations = field(init=False)

    def __post_init__(self) -> None:
        plan = self.plan
        self.client = SessionClient(plan.url, plan.model, plan.clients)
        self.measured = Measured(0.0, plan.groups)
        self._draws = draws(plan.traffic)
        self._conversations = Conversations(plan.traffic.most_tokens)

    async def open_sessions(self) -> None:
        """Every session sends what it has said so far, as many at once as there are clients."""
        places = asyncio.Semaphore(self.plan.clients)

        async def say(session: int, said: list[Message]) -> None:
            draw = Draw(session, "Go on.", self.plan.traffic.answer_tokens)
            async with places:
                await self._turn(draw, said)

        told = openings(self.plan.traffic)
        await asyncio.gather(*(say(session, said) for session, said in enumerate(told)))

    async def keep_asking(self) -> None:
        """One client's loop."""
        while not self.stopping:
            await self._turn(next(self._draws), [])

    async def _turn(self, draw: Draw, said: list[Message]) -> None:
        measured, (conversation, anew) = self.measured, self._conversations.begin(draw.session)
        messages = [*said, {"role": "user", "content": draw.question}]
        try:
            answer = await self.client.turn(draw.session, messages, draw.answer_tokens, anew=anew)
        except TurnFailed as problem:
            measured.problems[str(problem)] += 1
            return
        self._conversations.ended(draw.session, conversation, answer.prompt + answer.completion)
        measured.answers.append(answer)
