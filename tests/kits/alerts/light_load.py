"""A few clients that send short requests over and over, whatever comes back."""

import threading
from contextlib import suppress
from typing import Self

import httpx

from tests.kits.chaos.streams import http_client
from tests.kits.waiting import wait_for

TEXTS = ("My name is {n}. Tell me about Python.", "Count for me from {n}.", "Hello {n}, what is a list?")


class LightLoad:
    """Clients in threads; as a context manager it ends them.

    Args:
        url: The gateway.
        clients: Requests at the same time.
        pause_s: Between the end of a request and the next one of its client.
        tokens: Of each answer.

    Attributes:
        answered: Requests that got a whole answer.
        failed: All others.
    """

    def __init__(self, url: str, clients: int = 3, pause_s: float = 0.2, tokens: int = 32) -> None:
        self.answered = self.failed = 0
        self._url, self._pause_s, self._tokens = url, pause_s, tokens
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(n,), daemon=True) for n in range(clients)]

    def _ask(self, client: int) -> None:
        with http_client(self._url, timeout_s=20) as http:
            turn = client
            while not self._over.wait(self._pause_s):
                turn += 1
                body = {
                    "model": "demo",
                    "stream": True,
                    "max_tokens": self._tokens,
                    "ignore_eos": True,
                    "timeout": 15,
                    "messages": [{"role": "user", "content": TEXTS[turn % 3].format(n=turn)}],
                }
                whole = False
                with suppress(httpx.HTTPError):
                    answer = http.post("/v1/chat/completions", json=body)
                    whole = answer.status_code == 200 and "[DONE]" in answer.text
                self.answered += whole
                self.failed += not whole

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        wait_for(lambda: bool(self.answered), "a request is answered", 20)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(30)
