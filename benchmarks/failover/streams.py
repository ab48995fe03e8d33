"""Reads streams again and again, compares each with its answer without faults, and measures its pauses.

A stream's tokens are a function of its request, so each request is run once without faults, and every later
run of it must be the same: text, tokens, log probabilities, finish reasons, counts. Each run has a tenant of
its own, so that no group has its KV from another one. Times are those of `time.monotonic()`, like the event
loop's clock.
"""

import asyncio
import dataclasses
import time
from array import array
from dataclasses import dataclass, field
from itertools import count

from msgspec.structs import replace

from shared.client import Completion, InferenceClient
from shared.client.generation.attempts import Interruption
from shared.client.generation.results import Choice, gather
from shared.errors import RyzError
from shared.identity import new_request_id
from shared.messages import ChatMessage, GenerateRequest, Sampling, Tokens
from shared.messages.answer_parts import ToolCallPart

_RUNS = count()
NAMES = (
    "Ada", "Bo", "Cleo", "Dirk", "Edda", "Finn", "Gro", "Hal",
    "Ines", "Jon", "Kit", "Lea", "Mo", "Nils", "Ole", "Pia",
)  # fmt: skip
_TEXTS = (
    "Hello, my name is {name}.",
    "My name is {name}. Tell me about Python.",
    "{name} likes numbers. Count for me.",
    "Tell me about lists, {name} wants to know.",
)


def make_requests(model: str, count: int, tokens: int, *, chat: bool = True) -> list[GenerateRequest]:
    """Return requests of all kinds: half of them greedy, half at temperature 1.

    Some have two choices, stop strings, penalties or log probabilities. A model without a chat template
    (`chat` is false) gets the same texts as prompts.
    """
    made = []
    for number in range(count):
        greedy = number % 2 == 0
        kind = number // 2 % 4
        sampling = Sampling(
            temperature=0.0 if greedy else 1.0,
            seed=1000 + number,
            max_tokens=tokens,
            ignore_eos=True,
            n=2 if kind == 1 else 1,
            stop=["never said at all", "\n\n\n\n"] if kind == 2 else [],
            repetition_penalty=1.1 if kind == 3 else 1.0,
            presence_penalty=0.5 if kind == 3 else 0.0,
            frequency_penalty=0.25 if kind == 3 else 0.0,
            logprobs=2 if number % 8 == 0 else -1,
        )
        text = _TEXTS[number % len(_TEXTS)].format(name=f"{NAMES[number % len(NAMES)]} {number}")
        messages = [ChatMessage(role="user", content=text)] if chat else None
        prompt = None if chat else text
        made.append(
            GenerateRequest(
                request_id="r-0", model=model, messages=messages, prompt=prompt, sampling=sampling
            )
        )
    return made


@dataclass(slots=True)
class Reading:
    """One run of a request; `arrivals` are the times of its frames, packed because they are a million."""

    request: int
    began: float
    arrivals: "array[float]" = field(default_factory=lambda: array("d"))
    interruptions: list[Interruption] = field(default_factory=list)
    answer: Completion | None = None
    error: str = ""
    ended: float = 0.0

    def pause_around(self, moment: float, until: float) -> float:
        """Return the longest gap between frames that ends after `moment` and begins before `until`."""
        longest, before = 0.0, self.began
        for arrival in self.arrivals:
            if arrival > moment and before < until:
                longest = max(longest, arrival - before)
            before = arrival
        return longest


def same_answer(first: Completion, second: Completion) -> bool:
    """Return whether two answers are equal in all that a caller sees.

    The source of their KV may differ, and ids of tool calls do, since they follow from the request's id.
    """
    counts = [(one.usage.prompt_tokens, one.usage.completion_tokens) for one in (first, second)]
    return _nameless(first) == _nameless(second) and counts[0] == counts[1]


def _nameless(answer: Completion) -> list[Choice]:
    """Return the choices without the ids of calls."""
    return [
        dataclasses.replace(
            choice,
            parts=[
                replace(part, call_id="") if isinstance(part, ToolCallPart) else part for part in choice.parts
            ],
        )
        for choice in answer.choices
    ]


async def read_once(
    client: InferenceClient, request: GenerateRequest, number: int, timeout_s: float
) -> Reading:
    """Run a request to its end, be it an answer or an error."""
    reading = Reading(number, time.monotonic())
    frames: list[Tokens] = []
    stream = client.submit(
        replace(request, request_id=new_request_id(), tenant=f"bench-{next(_RUNS)}"), timeout_s=timeout_s
    )
    reading.interruptions = stream.interruptions
    try:
        async with stream:
            async for frame in stream.frames():
                reading.arrivals.append(time.monotonic())
                frames.append(frame)
        choices = gather(frames, request.sampling.n)
        reading.answer = Completion(stream.request_id, "", stream.group, choices, stream.usage)
    except RyzError as error:
        reading.error = f"{error.code}: {error.message}"
    reading.ended = time.monotonic()
    return reading


class Readers:
    """Reads all requests again and again, each in a task of its own; `readings` are those that ended.

    Readings are kept without their answers: garbage collections among a million log probabilities stop this
    process for up to 0.8 s, which looks like a pause of all streams.
    """

    def __init__(
        self,
        client: InferenceClient,
        requests: list[GenerateRequest],
        expected: list[Completion],
        timeout_s: float,
    ) -> None:
        self.readings: list[Reading] = []
        self.unequal = 0
        self.failures: list[str] = []
        self._client = client
        self._requests = requests
        self._expected = expected
        self._timeout_s = timeout_s
        self._stop = asyncio.Event()
        self._tasks = [asyncio.create_task(self._read_on(number)) for number in range(len(requests))]

    def describe(self) -> str:
        """Return the counts so far in words."""
        return f"{len(self.readings)} streams, {self.unequal} unequal, {len(self.failures)} lost"

    async def stop(self, limit_s: float) -> None:
        """Return when the streams that are being read have ended; those that do not in time count as hung."""
        self._stop.set()
        _, hung = await asyncio.wait(self._tasks, timeout=limit_s)
        for task in hung:
            task.cancel()
        self.failures += [f"deadline: the stream had not ended {limit_s:g} s after the last fault"] * len(
            hung
        )
        await asyncio.gather(*self._tasks, return_exceptions=bool(hung))

    async def _read_on(self, number: int) -> None:
        while not self._stop.is_set():
            reading = await read_once(self._client, self._requests[number], number, self._timeout_s)
            answer, reading.answer = reading.answer, None
            self.readings.append(reading)
            if answer is None:
                self.failures.append(reading.error)
                await asyncio.sleep(0.1)
            elif not same_answer(answer, self._expected[number]):
                self.unequal += 1
