"""The kinds of clients of a storm; each visit returns its ending as one word, with details after it.

- `done`: the answer was complete and correct.
- `left`: the client disconnected on purpose.
- An error code: the answer ended with it; `failed` precedes the code if text had come before.
- `lost`, `cut short`, `unreached`: the connection failed.
- `unequal`: the answer was wrong; details follow.
- `forgotten`: the history of the turn's session was missing.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from benchmarks.failover.streams import same_answer
from shared.client import Completion, InferenceClient
from shared.client.generation.results import gather
from shared.errors import RyzError
from shared.identity import new_request_id
from shared.messages import GenerateRequest, Tokens
from tests.kits.chaos.storm.storm_http import Broken, Exchange, Unreached, in_words, read_on
from tests.kits.chaos.streams import Body, Said, difference

TURNS = ("My name is {name}.", "What is my name?", "Tell me about Python.", "What is my name?")
CHAT = "/v1/chat/completions"
REFUSALS = {"overloaded", "rate_limited", "unavailable", "model_not_found", "not_ready"}
PATIENCE_S = 0.3  # pause before a refused client tries again
GRACE_S = 15
RETURN_S = (0.0, 0.05, 0.3, 0.8)  # pauses before resuming a stream; their sum is less than streams are kept


@dataclass(slots=True)
class Script:
    """Requests over HTTP and on the bus, with their expected answers."""

    url: str
    keys: dict[str, str]
    deadline_s: float
    bodies: Sequence[Body]
    expected: Sequence[Said]
    talks: Sequence[tuple[str, list[Said]]]
    requests: Sequence[GenerateRequest]
    answers: Sequence[Completion]


class Visits:
    """All kinds of visits; `kinds` maps names to them."""

    def __init__(self, script: Script, direct: InferenceClient, chance: random.Random) -> None:
        self._script = script
        self._direct = direct
        self._chance = chance
        self.kinds: dict[str, Callable[[], Awaitable[str]]] = {
            "reader": self.read,
            "slow reader": self.read_slowly,
            "leaver": self.leave,
            "returner": self.come_back,
            "hurried": self.hurry,
            "talker": self.talk,
            "direct": self.ask_directly,
            "direct leaver": self.leave_directly,
        }

    async def read(self) -> str:
        return await self._whole(self._any())

    async def read_slowly(self) -> str:
        return await self._whole(self._any(), narrow=True, every_s=self._chance.uniform(0.005, 0.06))

    async def hurry(self) -> str:
        """Sends a request whose deadline passes before or during the answer."""
        number = self._any()
        body = self._script.bodies[number] | {"timeout": self._chance.uniform(0.02, 0.5)}
        return await self._whole(number, body)

    async def leave(self) -> str:
        """Disconnects at a random time: while connecting, before the answer, or during it."""
        try:
            async with asyncio.timeout(self._chance.expovariate(4)):
                return await self._whole(self._any())
        except TimeoutError:
            return "left"

    async def come_back(self) -> str:
        """Leaves a resumable stream and resumes it, possibly several times."""
        number, said, stream_id = self._any(), Said(), ""
        give_up = time.monotonic() + self._script.deadline_s
        left_s = time.monotonic()
        first = self._exchange(CHAT, self._body(number), headers={"X-Stream-Grace": f"{GRACE_S}"})
        exchange, ending, events, returns = first, "", self._chance.randint(1, 30), self._chance.randint(1, 4)
        while time.monotonic() < give_up:
            try:
                async with exchange:
                    if exchange.status != 200:
                        ending = await exchange.error()
                        if word(ending) == "stream_not_found" and time.monotonic() > left_s + GRACE_S:
                            return "left"  # it was refused, or the machine was busy, until the time was over
                        if word(ending) not in REFUSALS or not stream_id:
                            return ending
                    else:
                        stream_id = exchange.headers["x-stream-id"]
                        if await read_on(exchange, said, events=events):
                            ending = self._judge(said, self._script.expected[number])
                            if ending != "cut short":
                                return ending
                        left_s = time.monotonic()
            except Unreached:
                ending = "unreached"
            except Broken:
                ending = "lost"
            if not stream_id:
                return ending
            if returns := returns - 1:
                await asyncio.sleep(self._chance.choice(RETURN_S))
                events = self._chance.randint(1, 30)
            else:
                events = 0
            last = {"Last-Event-ID": said.ids[-1]} if said.ids else {}
            exchange = self._exchange(f"/v1/streams/{stream_id}", None, headers=last)
        return ending or "late"

    async def talk(self) -> str:
        """Runs the turns of one session whose history the stack keeps.

        A turn that is refused is sent again under its key: without one, a turn whose answer was lost together
        with its group may be recorded twice (docs/sessions.md).
        """
        name, expected = self._chance.choice(self._script.talks)
        session_id = f"s-{self._chance.getrandbits(60):x}"
        for turn, right in enumerate(expected):
            give_up = time.monotonic() + self._script.deadline_s
            ending = "late"
            while time.monotonic() < give_up:
                body = turn_body(self._script.bodies[0], name, turn)
                ending = await self._turn(body, session_id, f"{session_id}-{turn}", right)
                if word(ending) not in REFUSALS:
                    break
                await asyncio.sleep(PATIENCE_S)
            if ending != "done":
                return ending if not (turn and ending.startswith("unequal: counts")) else "forgotten"
            await asyncio.sleep(self._chance.uniform(0, 1))
        return "done"

    async def ask_directly(self) -> str:
        """Sends a request over the bus as an external service."""
        number = self._chance.randrange(len(self._script.requests))
        request = replace(self._script.requests[number], request_id=new_request_id())
        frames: list[Tokens] = []
        try:
            async with self._direct.submit(request, timeout_s=self._script.deadline_s) as stream:
                async for frame in stream.frames():
                    frames.append(frame)
        except RyzError as error:
            return f"{'failed ' if frames else ''}{error.code}: {error.message}"
        choices = gather(frames, request.sampling.n)
        answer = Completion(request.request_id, "", stream.group, choices, stream.usage)
        right = self._script.answers[number]
        return "done" if same_answer(answer, right) else f"unequal: {answer} and not {right}"[:1500]

    async def leave_directly(self) -> str:
        try:
            async with asyncio.timeout(self._chance.expovariate(4)):
                return await self.ask_directly()
        except TimeoutError:
            return "left"

    async def flood(self) -> str:
        """Sends one of many simultaneous requests of a tenant that exceeds its rate limit."""
        number = self._any()
        said = Said()
        body = self._body(number) | {"max_tokens": 4, "n": 1}
        try:
            async with self._exchange(CHAT, body, "flood") as exchange:
                if exchange.status != 200:
                    return await exchange.error()
                await read_on(exchange, said)
        except Unreached:
            return "unreached"
        except Broken:
            return "lost"
        return in_words(said.errors[0]) if said.errors else "done" if said.dones else "cut short"

    async def _turn(self, body: Body, session_id: str, key: str, right: Said) -> str:
        said = Said()
        headers = {"X-Session-Id": session_id, "X-Session-Mode": "append", "Idempotency-Key": key}
        body = body | {"timeout": self._script.deadline_s}
        try:
            async with self._exchange(CHAT, body, "talker", headers=headers) as exchange:
                if exchange.status != 200:
                    return await exchange.error()
                await read_on(exchange, said)
        except Unreached:
            return "unreached"
        except Broken:
            return "lost"
        return self._judge(said, right)

    async def _whole(
        self, number: int, body: Body | None = None, *, narrow: bool = False, every_s: float = 0.0
    ) -> str:
        said = Said()
        try:
            async with self._exchange(CHAT, body or self._body(number), narrow=narrow) as exchange:
                if exchange.status != 200:
                    return await exchange.error()
                await read_on(exchange, said, every_s=every_s)
        except Unreached:
            return "unreached"
        except Broken:
            return "lost"
        return self._judge(said, self._script.expected[number])

    def _exchange(
        self,
        path: str,
        body: Body | None,
        who: str = "reader",
        *,
        narrow: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> Exchange:
        given = {"Authorization": f"Bearer {self._script.keys[who]}", **(headers or {})}
        return Exchange(self._script.url, path, body=body, headers=given, narrow=narrow)

    def _any(self) -> int:
        return self._chance.randrange(len(self._script.bodies))

    def _body(self, number: int) -> Body:
        return self._script.bodies[number] | {"timeout": self._script.deadline_s}

    @staticmethod
    def _judge(said: Said, right: Said) -> str:
        if said.errors:
            began = "failed " if any(said.texts.values()) else ""
            return began + in_words(said.errors[0]) if len(said.errors) == 1 else f"unequal: {said.errors}"
        if not said.dones:
            return "cut short"
        wrong = difference(said, right)
        return f"unequal: {wrong}" if wrong else "done"


def word(ending: str) -> str:
    """The ending without its details."""
    return ending.partition(":")[0]


def turn_body(like: Body, name: str, turn: int) -> Body:
    """The body of a turn of a session: short, and equal for all sessions with that name."""
    text = TURNS[turn].format(name=name)
    kept = {key: like[key] for key in ("model", "stream", "stream_options")}
    return kept | {
        "messages": [{"role": "user", "content": text}],
        "temperature": 1.0,
        "seed": 31 + turn,
        "max_tokens": 16,
    }
