"""Reads HTTP streams, each in a thread, and compares them with the same streams without a fault.

A stream's tokens are a function of its request, so each body is sent without faults first. Later streams must
be equal in the texts of all choices, finish reasons, log probabilities, counts and one `[DONE]`.
"""

import json
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.kits.waiting import PATIENCE_S, wait_for

Body = dict[str, Any]
MAX_PROBLEMS = 20  # most problems that are shown; all are counted
_TEXTS = (
    "Hello, my name is {name}.",
    "My name is {name}. Tell me about Python.",
    "{name} likes numbers. Count for me.",
    "Tell me about lists, {name} wants to know.",
)
_NAMES = ("Ada", "Bo", "Cleo", "Dirk", "Edda", "Finn", "Gro", "Hal")


@dataclass(slots=True)
class Said:
    """What a stream delivered.

    Attributes:
        status: HTTP status.
        texts: Text by choice.
        finish: Finish reason by choice.
        logprobs: Log probabilities by choice.
        counts: Number of prompt tokens and completion tokens.
        errors: Error events; none without a fault.
        dones: Number of `[DONE]` events; 1 without a fault.
        ids: Ids of the events.
        reason: Reason of a refusal.
        arrivals: Arrival times of the events.
    """

    status: int = 0
    texts: dict[int, str] = field(default_factory=lambda: defaultdict(str))
    finish: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, list[Any]] = field(default_factory=lambda: defaultdict(list))
    counts: tuple[int, int] = (0, 0)
    errors: list[Body] = field(default_factory=list)
    dones: int = 0
    ids: list[str] = field(default_factory=list, compare=False)
    reason: str = field(default="", compare=False)
    arrivals: list[float] = field(default_factory=list, compare=False)

    @property
    def complete(self) -> bool:
        """Whether the stream ended without errors and exactly once."""
        return self.status == 200 and not self.errors and self.dones == 1 and self.counts[1] > 0

    def event(self, data: str) -> None:
        """Adds one event of the stream."""
        assert not self.dones, f"after [DONE] came {data}"
        if data == "[DONE]":
            self.dones += 1
            return
        event_data = json.loads(data)
        if "error" in event_data:
            self.errors.append(event_data["error"])
            return
        if event_data.get("usage"):
            self.counts = event_data["usage"]["prompt_tokens"], event_data["usage"]["completion_tokens"]
        for choice in event_data["choices"]:
            index = choice["index"]
            self.texts[index] += choice["delta"].get("content") or ""
            self.logprobs[index] += (choice["logprobs"] or {}).get("content") or []
            if choice["finish_reason"]:
                assert index not in self.finish, event_data
                self.finish[index] = choice["finish_reason"]


def make_bodies(model: str, count: int, tokens: int) -> list[Body]:
    """Bodies, half at temperature 0, half at 1; some with two choices, stop strings, penalties, logprobs."""
    bodies = []
    for number in range(count):
        kind = number // 2 % 4
        text = _TEXTS[number % len(_TEXTS)].format(name=f"{_NAMES[number % len(_NAMES)]} {number}")
        body: Body = {
            "model": model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "messages": [{"role": "user", "content": text}],
            "temperature": float(number % 2),
            "seed": 7000 + number,
            "max_tokens": tokens,
            "ignore_eos": True,
        }
        if kind == 1:
            body["n"] = 2
        if kind == 2:
            body["stop"] = ["never said at all", "\n\n\n\n"]
        if kind == 3:
            body |= {"repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.25}
        if number % 8 in {0, 3}:
            body |= {"logprobs": True, "top_logprobs": 2}
        bodies.append(body)
    return bodies


@contextmanager
def http_client(url: str, timeout_s: float = 60.0, key: str = "") -> Iterator[httpx.Client]:
    """A client for many threads, without a limit of connections; a pause over `timeout_s` is an error."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
    with httpx.Client(base_url=url, timeout=timeout_s, limits=limits, headers=headers) as client:
        yield client


def read(client: httpx.Client, body: Body, first_text: Callable[[], None] | None = None) -> Said:
    """Sends a body and reads its answer to any end; `first_text` is called at the first text."""
    said = Said()
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        said.status = answer.status_code
        said.reason = answer.headers.get("x-ryz-reason", "")
        if said.status != 200:
            answer.read()
            return said
        for line in answer.iter_lines():
            if line.startswith("data: "):
                said.arrivals.append(time.monotonic())
                said.event(line.removeprefix("data: "))
                if first_text is not None and any(said.texts.values()):
                    first_text()
                    first_text = None
    return said


def read_all(client: httpx.Client, bodies: Sequence[Body]) -> list[Said]:
    """Reads the streams of all bodies concurrently."""
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: read(client, body), bodies))


def stopped_late(client: httpx.Client, bodies: Sequence[Body]) -> list[Body]:
    """The bodies; those with stop strings get one more, from the last quarter of their stream's text."""
    changed = list(bodies)
    for index, body in enumerate(bodies):
        if "stop" in body:
            text = read(client, body).texts[0]
            begin = 3 * len(text) // 4
            changed[index] = body | {"stop": [*body["stop"], text[begin : begin + 8]]}
    return changed


def undisturbed(client: httpx.Client, bodies: Sequence[Body]) -> list[Said]:
    """The streams of all bodies without a fault; two runs must be equal."""
    first, second = read_all(client, bodies), read_all(client, bodies)
    for one, other in zip(first, second, strict=True):
        assert one.complete, one
        assert one == other
    return second


class Readers:
    """Reads the streams of all bodies repeatedly while the context is open; exit fails if any was wrong.

    Args:
        client: The HTTP client.
        bodies: Requests, one thread each.
        expected: The stream of each body without a fault.
        refusals: Count 503 before the first token in `refused` instead of as a problem.
        sessions: Give each stream with one choice a new session.
    """

    def __init__(
        self,
        client: httpx.Client,
        bodies: Sequence[Body],
        expected: Sequence[Said],
        *,
        refusals: bool = False,
        sessions: bool = False,
    ) -> None:
        self.streams = 0
        self.refused = 0
        self.problems: list[str] = []
        self._client, self._bodies, self._expected = client, bodies, expected
        self._refusals, self._sessions = refusals, sessions
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._read_on, args=(number,), daemon=True)
            for number in range(len(bodies))
        ]

    def __enter__(self) -> "Readers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(90.0)
        if kind is None:
            assert not any(thread.is_alive() for thread in self._threads), "a stream hangs"
            assert not self.problems, f"{len(self.problems)} problems:\n" + "\n".join(
                self.problems[:MAX_PROBLEMS]
            )

    def _read_on(self, number: int) -> None:
        while not self._over.is_set():
            body = self._bodies[number]
            if self._sessions and "n" not in body:
                body = body | {"session_id": f"reader-{secrets.token_hex(8)}"}
            try:
                said = read(self._client, body)
                refused = said.status == 503 and self._refusals
                problem = "" if refused else difference(said, self._expected[number])
            except (httpx.HTTPError, AssertionError) as error:
                refused, problem = False, repr(error)
            with self._lock:
                self.streams += 1
                self.refused += refused
                if problem:
                    self.problems.append(f"stream {number}: {problem}")
            if problem or refused:
                self._over.wait(0.1)

    def await_streams(self, more: int) -> None:
        """Waits until `more` further streams have ended."""
        wanted = self.streams + more
        wait_for(lambda: self.streams >= wanted, f"{more} streams end", PATIENCE_S)


def difference(said: Said, expected: Said) -> str:
    """The difference from the expected stream; empty if they are equal."""
    names = ("status", "errors", "dones", "counts", "finish", "texts", "logprobs")
    found = [
        f"{name}: {getattr(said, name)!r} and not {getattr(expected, name)!r}"[:600]
        for name in names
        if getattr(said, name) != getattr(expected, name)
    ]
    return "; ".join(([said.reason] if said.reason else []) + found)
