"""Requests for several models, whole and streamed, each with a deadline, and what becomes of them."""

import json
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

DEADLINE_S = 60.0
SLACK_S = 10.0  # after the deadline a request hangs
ASK_AGAIN_S = 0.2
BURST = (4, 24)  # requests for one model in a row, as people ask


@dataclass(frozen=True, slots=True)
class Visit:
    """One request and its end.

    Attributes:
        asked: How often it was sent; more than once: its connection broke, and it was asked again.
        status: HTTP status; 0: no answer in time; -1: an error within a stream.
        reason: Of a refusal.
        problem: What was wrong with it; empty: nothing.
    """

    model: str
    streamed: bool
    took_s: float
    asked: int
    status: int
    reason: str = ""
    retry_after: str = ""
    problem: str = ""

    @property
    def answered(self) -> bool:
        """Whether it has its whole answer."""
        return self.status == 200 and not self.problem

    @property
    def refused(self) -> bool:
        """Whether it was refused honestly: with a reason and a time to come back, or for its deadline."""
        honest = self.status in {503, 429} and bool(self.reason) and self.retry_after.isdecimal()
        return honest or self.status == 504


def in_random_order(models: Sequence[str], count: int, rng: random.Random) -> list[str]:
    """Return models for so many requests, each drawn by itself."""
    return [rng.choice(models) for _ in range(count)]


def in_bursts(models: Sequence[str], count: int, rng: random.Random) -> list[str]:
    """Return models for so many requests, in runs for one model."""
    drawn = list[str]()
    while len(drawn) < count:
        drawn += [rng.choice(models)] * rng.randint(*BURST)
    return drawn[:count]


class ModelTraffic:
    """Sends requests from several threads until `finish`, or until there are no more.

    Args:
        url: The gateway.
        order: The model of each request.
        tokens: The bounds of their lengths.
        clients: How many are under way at the same time.
    """

    def __init__(
        self, url: str, order: Sequence[str], rng: random.Random, tokens: tuple[int, int], clients: int = 8
    ) -> None:
        self.visits: list[Visit] = []
        self._url = url
        self._todo: queue.SimpleQueue[tuple[str, bool, dict[str, Any]]] = queue.SimpleQueue()
        for number, model in enumerate(order):
            body = {
                "model": model,
                "prompt": f"Tell me of number {number}.",
                "max_tokens": rng.randint(*tokens),
                "temperature": 0,
            }
            self._todo.put((model, rng.random() < 0.5, body))
        self._enough = threading.Event()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(clients)]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Send no more."""
        self._enough.set()

    @property
    def running(self) -> bool:
        """Whether requests are left or under way."""
        return any(thread.is_alive() for thread in self._threads)

    def tally(self) -> str:
        """The outcomes in one line for a person."""
        counts = Counter(
            "answered" if one.answered else f"{one.status} {one.reason or one.problem}" for one in self.visits
        )
        took = sorted(one.took_s for one in self.visits if one.answered) or [0.0]
        again = sum(one.asked > 1 for one in self.visits)
        return (
            f"{len(self.visits)} requests: {dict(counts)}; {again} asked again; answers took "
            f"{took[len(took) // 2]:.2f} s (median), {took[int(0.95 * len(took))]:.2f} s (p95), "
            f"{took[-1]:.2f} s (longest)"
        )

    def _work(self) -> None:
        limits = httpx.Limits(max_keepalive_connections=0)
        with httpx.Client(base_url=self._url, timeout=DEADLINE_S + SLACK_S, limits=limits) as client:
            while not self._enough.is_set():
                try:
                    model, streamed, body = self._todo.get_nowait()
                except queue.Empty:
                    return
                self.visits.append(self._visit(client, model, body, streamed=streamed))

    def _visit(self, client: httpx.Client, model: str, body: dict[str, Any], *, streamed: bool) -> Visit:
        began, asked = time.monotonic(), 0
        while (left_s := began + DEADLINE_S - time.monotonic()) > 0:
            asked += 1
            headers = {"X-Request-Timeout": f"{left_s:.1f}"}
            try:
                ended = _stream(client, body, headers) if streamed else _whole(client, body, headers)
            except httpx.TransportError:  # its gateway is gone: the client asks again
                time.sleep(ASK_AGAIN_S)
                continue
            status, reason, retry_after, problem = ended
            took_s = time.monotonic() - began
            return Visit(model, streamed, took_s, asked, status, reason, retry_after, problem)
        return Visit(model, streamed, time.monotonic() - began, asked, 0, problem="no answer in time")


_End = tuple[int, str, str, str]


def _whole(client: httpx.Client, body: dict[str, Any], headers: dict[str, str]) -> _End:
    answer = client.post("/v1/completions", json=body, headers=headers)
    if answer.status_code != 200:
        return _refusal(answer)
    found = answer.json()
    choice = found["choices"][0]
    problem = "" if found["model"] == body["model"] else f"answered by {found['model']}"
    if choice["finish_reason"] not in {"stop", "length"}:
        problem = f"ended by {choice['finish_reason']}"
    return 200, "", "", problem


def _stream(client: httpx.Client, body: dict[str, Any], headers: dict[str, str]) -> _End:
    with client.stream("POST", "/v1/completions", json={**body, "stream": True}, headers=headers) as answer:
        if answer.status_code != 200:
            answer.read()
            return _refusal(answer)
        finish, done = "", False
        for line in answer.iter_lines():
            data = line.removeprefix("data: ")
            if data == line:
                continue
            if data == "[DONE]":
                done = True
                break
            event = json.loads(data)
            if "error" in event:
                return -1, str(event["error"].get("code")), "", f"error in a stream: {event['error']}"
            for choice in event.get("choices", []):
                finish = choice.get("finish_reason") or finish
    if not done:
        raise httpx.RemoteProtocolError("the stream ended early")
    return 200, "", "", "" if finish in {"stop", "length"} else f"ended by {finish!r}"


def _refusal(answer: httpx.Response) -> _End:
    reason = answer.headers.get("x-ryz-reason", "")
    problem = "" if answer.status_code in {429, 503, 504} else answer.text[:200]
    return answer.status_code, reason, answer.headers.get("retry-after", ""), problem
