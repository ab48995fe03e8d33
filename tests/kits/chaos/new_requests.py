"""Sends short new requests all the time, each on a connection of its own, and sorts what becomes of them."""

import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Self

import httpx

from tests.kits.chaos.streams import Body


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request.

    Attributes:
        began: When it was sent, by `time.monotonic`.
        took_s: Seconds until its answer was complete.
        status: HTTP status; 0: the connection broke.
        reason: Of a refusal, or the name of the error.
        retry_after: The header `Retry-After` of a refusal.
        text: The answer.
    """

    began: float
    took_s: float
    status: int
    reason: str = ""
    retry_after: str = ""
    text: str = ""

    @property
    def answered(self) -> bool:
        """Whether it has its answer."""
        return self.status == 200

    @property
    def honest(self) -> bool:
        """Whether it was refused with a reason and a time to come back."""
        return self.status == 503 and bool(self.reason) and self.retry_after.isdecimal()


class NewRequests:
    """Threads that send requests one after another inside a block.

    Args:
        url: The gateway.
        body: What is sent.
        num_threads: How many requests are under way at the same time.
        pause_s: Between two requests of a thread.

    Attributes:
        outcomes: Of all requests that have ended.
    """

    def __init__(self, url: str, body: Body, num_threads: int = 6, pause_s: float = 0.01) -> None:
        self.outcomes: list[Outcome] = []
        self._url = url
        self._body = body
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._send_all) for _ in range(num_threads)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def tally(self) -> str:
        """The numbers of all outcomes, and the longest wait of an answer."""
        counts = Counter((one.status, one.reason) for one in self.outcomes)
        longest = max((one.took_s for one in self.outcomes if one.answered), default=0.0)
        return f"{len(self.outcomes)} requests, {dict(counts)}, longest answer {longest:.1f} s"

    def _send_all(self) -> None:
        with httpx.Client(
            base_url=self._url, timeout=60.0, limits=httpx.Limits(max_keepalive_connections=0)
        ) as client:
            while not self._stop.wait(self._pause_s):
                self.outcomes.append(self._send(client))

    def _send(self, client: httpx.Client) -> Outcome:
        began = time.monotonic()
        try:
            answer = client.post("/v1/chat/completions", json=self._body)
        except httpx.TransportError as error:
            return Outcome(began, time.monotonic() - began, 0, type(error).__name__)
        took_s = time.monotonic() - began
        if answer.status_code != 200:
            reason = answer.headers.get("x-ryz-reason", "")
            retry_after = answer.headers.get("retry-after", "")
            return Outcome(began, took_s, answer.status_code, reason, retry_after)
        text = answer.json()["choices"][0]["message"]["content"]
        return Outcome(began, took_s, 200, text=text)
