"""Loads a real stack with many sessions: how evenly a policy spreads the work, and what KV it still finds.

A closed loop: each of a number of clients draws a session (`sessions/traffic.py`), sends a turn, reads the
answer, and draws again. Every session speaks once before that, and a warm-up passes before the measurement. A
turn counts if it began in the measured time.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.lib.measuring import BenchError, Progress
from benchmarks.lib.service_metrics import read_all
from benchmarks.lib.stack import RunningStack, worker_groups
from benchmarks.sessions.client import ConversationFull, SessionClient
from benchmarks.sessions.figures import MeasuredTurns
from benchmarks.sessions.traffic import (
    ANSWER_TOKENS,
    ConversationLengths,
    DrawnTurn,
    TextMessage,
    draw_turns,
    openings,
)
from benchmarks.stack_plans import SessionsPlan


async def measure(plan: SessionsPlan, stack: RunningStack, progress: Progress) -> MeasuredTurns:
    """Measure the turns of one stack.

    Raises:
        BenchError: No turn was answered, or a service does not answer with its metrics.
    """
    load = SessionLoad(plan, stack)
    try:
        progress("every session speaks once")
        await load.open_sessions()
        async with asyncio.TaskGroup() as clients:
            for _ in range(plan.clients):
                clients.create_task(load.keep_asking())
            progress("warm-up")
            await asyncio.sleep(plan.warmup)
            before, began = await read_all(stack.pids), time.perf_counter()
            progress("measuring")
            load.measured = MeasuredTurns(0.0, worker_groups(stack.pids), before=before)
            await asyncio.sleep(plan.duration)
            load.stopping = True
            load.measured.seconds = time.perf_counter() - began
            load.measured.after = await read_all(stack.pids)
    finally:
        await load.client.close()
    if not load.measured.answers:
        kinds = ", ".join(load.measured.problems) or "nothing came back"
        raise BenchError(f"no turn was answered: {kinds}")
    return load.measured


@dataclass(slots=True)
class SessionLoad:
    """The clients' common state; `measured` is exchanged for a fresh one when the warm-up is over."""

    plan: SessionsPlan
    stack: RunningStack
    client: SessionClient = field(init=False)
    measured: MeasuredTurns = field(init=False)
    stopping: bool = False
    _drawn: Iterator[DrawnTurn] = field(init=False)
    _lengths: ConversationLengths = field(default_factory=ConversationLengths)

    def __post_init__(self) -> None:
        self.client = SessionClient(self.stack.url, self.stack.model, self.plan.clients)
        self.measured = MeasuredTurns(0.0, worker_groups(self.stack.pids))
        self._drawn = draw_turns(self.plan)

    async def open_sessions(self) -> None:
        """Have every session send what it has said so far, as many at once as there are clients."""
        slots = asyncio.Semaphore(self.plan.clients)

        async def open_session(session: int, said: list[TextMessage]) -> None:
            async with slots:
                await self.send_turn(DrawnTurn(session, "Go on.", ANSWER_TOKENS), said)

        await asyncio.gather(*(open_session(*one) for one in enumerate(openings(self.plan))))

    async def keep_asking(self) -> None:
        """Send one client's turns until the measurement stops."""
        while not self.stopping:
            await self.send_turn(next(self._drawn), [])

    async def send_turn(self, drawn: DrawnTurn, said: list[TextMessage]) -> None:
        """Send a turn and note its answer.

        A turn that does not fit into its session's conversation begins a new one. How long the conversation
        is cannot be known before: turns of the session that are under way are not in any usage yet.
        """
        measured, (conversation, anew) = self.measured, self._lengths.begin_turn(drawn.session)
        messages = [*said, {"role": "user", "content": drawn.question}]
        try:
            answer = await self.client.ask_turn(drawn.session, messages, drawn.answer_tokens, anew=anew)
        except ConversationFull:
            measured.full += 1
            self._lengths.begin_conversation(drawn.session, conversation)
            await self.send_turn(drawn, said)
            return
        except BenchError as problem:
            measured.problems[str(problem)] += 1
            return
        self._lengths.end_turn(drawn.session, conversation, answer.prompt + answer.completion)
        measured.answers.append(answer)
