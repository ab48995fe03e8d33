"""Runs many clients of different kinds against a stack and checks that every request ends once and correctly.

`storm_visits.py` has the clients and `storm_faults.py` the faults; `storm_stock.py` counts the resources that
are still in use afterwards.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Self

from msgspec.structs import replace

from benchmarks.failover.streams import make_requests
from shared import subjects
from shared.bus import Message
from shared.bus.nats import NatsBus
from shared.client import InferenceClient
from shared.codec import decode, encode
from shared.errors import InvalidRequest
from shared.identity import new_request_id
from shared.messages import Accepted, Done, Failed, FrameBatch
from tests.kits.chaos.storm.excuses import problem
from tests.kits.chaos.storm.storm_faults import Faults
from tests.kits.chaos.storm.storm_http import Exchange, read_on
from tests.kits.chaos.storm.storm_visits import CHAT, TURNS, Script, Visits, turn_body, word
from tests.kits.chaos.streams import Body, Said, make_bodies
from tests.kits.e2e.stack import Stack

KEYS = {who: f"key-of-{who}" for who in ("reader", "talker", "flood", "calm")}
NAMES = ("Ada", "Bo", "Cleo")
SHARES = {
    "reader": 6,
    "slow reader": 3,
    "leaver": 4,
    "returner": 5,
    "hurried": 2,
    "talker": 4,
    "direct": 4,
    "direct leaver": 2,
}
DEADLINE_S = 30.0
MARGIN_S = 15.0  # after the deadline; a request without an end by then hangs
FLOOD = 600
MAX_WORDS = 500
Attempt = tuple[str, int, str]  # request id, attempt number, group


@dataclass(slots=True)
class Outcome:
    """Results of one run.

    Attributes:
        endings: Number of visits by kind of client and ending.
        problems: Violations found.
        words: An example message for each ending that has one.
        ends_seen: Number of attempts whose terminal frame was seen on the bus.
    """

    endings: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    words: dict[str, str] = field(default_factory=dict)
    ends_seen: int = 0

    def count(self, *words: str) -> int:
        """Number of visits with these endings."""
        return sum(n for ending, n in self.endings.items() if ending.partition(": ")[2] in words)


class Witness:
    """Reads all frames that leaders send to callers, and keeps the terminal frames by attempt and group.

    A resent frame counts once. A refusal, which comes in place of the first frame, does not count as an end.
    """

    def __init__(self) -> None:
        self._first: dict[Attempt, int] = {}
        # the instance that sent it
        self._ends: dict[Attempt, dict[tuple[int, bytes], str]] = {}
        self._unreadable: list[str] = []

    def __len__(self) -> int:
        return len(self._ends)

    def problems(self) -> list[str]:
        """Descriptions of what breaks the protocol: a second end, frames that cannot be read."""
        return self._twice() + [f"frames that cannot be read: {words}" for words in self._unreadable]

    def _twice(self) -> list[str]:
        """Descriptions of accepted attempts with more than one terminal frame."""
        found = {
            attempt: [
                (instance, data)
                for (seq, data), instance in ends.items()
                if seq > self._first.get(attempt, seq)
            ]
            for attempt, ends in self._ends.items()
        }
        return [
            f"attempt {number} of {request_id} had {len(ends)} ends in group {group}: {ends}"[:MAX_WORDS]
            for (request_id, number, group), ends in found.items()
            if len(ends) > 1
        ]

    async def hear(self, message: Message) -> None:
        """Handles a message in any caller's inbox; ignores all but frame batches."""
        if not message.subject.endswith(".f"):
            return
        try:
            batch = decode(message.data, FrameBatch)
        except InvalidRequest as error:
            self._unreadable.append(f"{message.subject}: {error.message}"[:MAX_WORDS])
            return
        for frame in batch.frames:
            attempt = frame.request_id, frame.attempt, batch.group
            if isinstance(frame, Accepted):
                self._first[attempt] = frame.seq
            elif isinstance(frame, Done | Failed):
                sent = frame.seq, encode(frame)
                self._ends.setdefault(attempt, {}).setdefault(sent, batch.instance_id)


class Storm:
    """Runs visits with `run`. Entering the context records the expected answers, without faults."""

    def __init__(self, stack: Stack, model: str, *, tokens: int, seed: int) -> None:
        self._stack = stack
        self._model = model
        self._tokens = tokens
        self._chance = random.Random(seed)
        self._exits = AsyncExitStack()
        self.witness = Witness()
        self.losses: list[float] = []  # times at which a router declared a group lost

    async def __aenter__(self) -> Self:
        self.asks = await self._bus("cli")
        bus = await self._bus("outside")
        self._direct = direct = InferenceClient(bus, caller=subjects.OutsideService("outside", "outside"))
        await direct.start()
        self._exits.push_async_callback(direct.close)
        for user in ("outside", "gateway"):
            ears = await self._bus(user)
            await ears.subscribe(f"_INBOX.{user}.>", self.witness.hear)
        await ears.subscribe(subjects.GROUP_DOWN, self._group_down)
        self._visits = Visits(await self._learn(direct), direct, self._chance)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exits.aclose()

    async def run(
        self, visits: int, seconds: float, faults: Faults | None = None, floods: int = 1
    ) -> Outcome:
        """Runs visits and floods, and injects faults meanwhile.

        Args:
            visits: Number of visits.
            seconds: Time over which the visits start.
            faults: Faults to inject; None for none.
            floods: Number of floods.

        Returns:
            The outcome, when all visits have ended.
        """
        outcome, before = Outcome(), len(self.witness)
        names, weights = list(SHARES), list(SHARES.values())
        chosen = [self._visits.kinds[name] for name in names]
        work = [
            self._visit(name, chosen[names.index(name)], self._chance.uniform(0, seconds), faults, outcome)
            for name in self._chance.choices(names, weights, k=visits)
        ]
        for number in range(floods):
            at = seconds * (number + 0.5) / floods
            work += [self._visit("flood", self._visits.flood, at, faults, outcome) for _ in range(FLOOD)]
        trouble = faults.run(seconds) if faults is not None else asyncio.sleep(0)
        await asyncio.gather(trouble, *work)
        outcome.ends_seen = len(self.witness) - before
        outcome.problems += self.witness.problems()
        if self._direct.num_open:
            outcome.problems.append(f"the caller on the bus still has {self._direct.num_open} requests")
        return outcome

    async def _visit(
        self,
        kind: str,
        visit: Callable[[], Awaitable[str]],
        after_s: float,
        faults: Faults | None,
        outcome: Outcome,
    ) -> None:
        await asyncio.sleep(after_s)
        began = time.monotonic()
        turns = len(TURNS) if kind == "talker" else 1
        try:
            async with asyncio.timeout(turns * DEADLINE_S + MARGIN_S):
                ending = await visit()
        except TimeoutError:
            ending = "hung"
        except Exception as error:  # an unreadable answer counts as a wrong one
            ending = f"unequal: {error!r}"
        outcome.endings[f"{kind}: {word(ending)}"] += 1
        outcome.words.setdefault(f"{kind}: {word(ending)}", ending.partition(": ")[2][:MAX_WORDS])
        moved = bool(self.losses) and self.losses[-1] > began
        reason = problem(kind, word(ending), began, faults, moved=moved)
        if reason:
            outcome.problems.append(
                f"{kind}, after {time.monotonic() - began:.1f} s: {ending[:MAX_WORDS]} ({reason}); faults: "
                + (", ".join(f"{one.kind} {one.part}" for one in faults.during(began)) if faults else "none")
            )

    async def _group_down(self, _: Message) -> None:
        self.losses.append(time.monotonic())

    async def _bus(self, user: str) -> NatsBus:
        bus = await NatsBus.connect(self._stack.state.nats_urls[user], name="storm")
        self._exits.push_async_callback(bus.close)
        return bus

    async def _learn(self, direct: InferenceClient) -> Script:
        """Records the expected answers; two runs must agree."""
        url = self._stack.state.url
        bodies = make_bodies(self._model, 12, self._tokens)
        requests = make_requests(self._model, 8, self._tokens)
        runs = [
            (
                [await self._said(url, body) for body in bodies],
                [await self._talk(url, bodies[0], name, f"{run}-{name}") for name in NAMES],
            )
            for run in range(2)
        ]
        assert runs[0] == runs[1]
        answers = []
        for request in requests:
            request = replace(request, request_id=new_request_id())  # noqa: PLW2901 (a copy of it)
            async with direct.submit(request, timeout_s=DEADLINE_S) as stream:
                answers.append(await stream.completion())
        said, talks = runs[0]
        return Script(
            url, KEYS, DEADLINE_S, bodies, said, list(zip(NAMES, talks, strict=True)), requests, answers
        )

    async def _talk(self, url: str, like: Body, name: str, session_id: str) -> list[Said]:
        return [
            await self._said(
                url,
                turn_body(like, name, turn),
                {"X-Session-Id": session_id, "X-Session-Mode": "append"},
            )
            for turn in range(len(TURNS))
        ]

    @staticmethod
    async def _said(url: str, body: Body, headers: dict[str, str] | None = None) -> Said:
        said = Said()
        headers = {"Authorization": f"Bearer {KEYS['calm']}"} | (headers or {})
        async with Exchange(url, CHAT, body=body, headers=headers) as exchange:
            assert exchange.status == 200, await exchange.error()
            await read_on(exchange, said)
        assert said.complete, said
        return said


def shown(outcomes: Sequence[Outcome]) -> str:
    """A summary for the test's output."""
    return "\n".join(
        f"{sum(one.endings.values())} visits, {one.ends_seen} ends seen: {dict(sorted(one.endings.items()))}"
        + "".join(f"\n    {ending}: {words}" for ending, words in sorted(one.words.items()) if words)
        for one in outcomes
    )
