"""Clients of many kinds that ask a stack over HTTP until they are stopped.

Each request is recorded with how it ended. A client that breaks off its own stream counts for no failure.
"""

import asyncio
import json
import random
import time
from dataclasses import dataclass

import httpx

KINDS = ("stream", "whole", "session", "schema", "leaves")
_TIMEOUT_S = 120.0
PAUSE_S = 0.2  # of a client that was refused
_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "old": {"type": "boolean"}},
    "required": ["name", "old"],
    "additionalProperties": False,
}
NAMES = ("Ada", "Bo", "Cleo", "Dirk", "Edda", "Finn", "Gro", "Hal")


@dataclass(frozen=True, slots=True)
class Ending:
    """How a request ended.

    Attributes:
        at_s: When it was sent, in seconds since the load began.
        seconds: Until its end.
        kind: One of `KINDS`.
        error: Empty: the answer was whole; `left`: its client went away; else what went wrong.
    """

    at_s: float
    seconds: float
    kind: str
    error: str = ""

    @property
    def failed(self) -> bool:
        """True if the stack owes an answer."""
        return self.error not in ("", "left")


class MixedLoad:
    """The clients, as a context manager's body runs them: call `run` in a task, and cancel it.

    Args:
        tokens: Of an answer at most.
        seed: Decides the kinds and texts of requests.
    """

    def __init__(self, url: str, model: str, *, clients: int, tokens: int, seed: int) -> None:
        self.endings: list[Ending] = []
        self._url = url
        self._model = model
        self._clients = clients
        self._tokens = tokens
        self._seed = seed
        self.began = time.monotonic()

    async def run(self) -> None:
        """Runs all clients until cancelled."""
        self.began = time.monotonic()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=self._clients)
        async with (
            httpx.AsyncClient(base_url=self._url, timeout=_TIMEOUT_S, limits=limits) as http,
            asyncio.TaskGroup() as group,
        ):
            for number in range(self._clients):
                group.create_task(self._client(http, number))

    async def _client(self, http: httpx.AsyncClient, number: int) -> None:
        chance, turns = random.Random(self._seed * 1000 + number), 0
        while True:
            kind, turns = chance.choice(KINDS), turns + 1
            body, headers = self._request(kind, chance, f"soak-{number}-{turns // 8}")
            began = time.monotonic()
            error = await self._ask(http, kind, body, headers, chance)
            seconds = time.monotonic() - began
            self.endings.append(Ending(round(began - self.began, 3), round(seconds, 4), kind, error))
            if error and error != "left":
                await asyncio.sleep(PAUSE_S)

    def _request(
        self, kind: str, chance: random.Random, session: str
    ) -> tuple[dict[str, object], dict[str, str]]:
        name = chance.choice(NAMES)
        texts = [
            f"Hello, my name is {name}.",
            f"My name is {name}. Tell me about Python.",
            "What is my name?",
        ]
        body: dict[str, object] = {
            "model": self._model,
            "messages": [{"role": "user", "content": chance.choice(texts)}],
            "max_tokens": chance.randint(2, self._tokens),
            "temperature": chance.choice([0, 1]),
            "stream": kind in ("stream", "leaves") or (kind == "session" and chance.random() < 0.5),
        }
        if kind == "schema":
            body |= {"max_tokens": self._tokens * 4}
            form = {"name": "person", "schema": _SCHEMA, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        return body, {"X-Session-Id": session} if kind == "session" else {}

    async def _ask(
        self,
        http: httpx.AsyncClient,
        kind: str,
        body: dict[str, object],
        headers: dict[str, str],
        chance: random.Random,
    ) -> str:
        try:
            if not body["stream"]:
                answer = await http.post("/v1/chat/completions", json=body, headers=headers)
                return "" if answer.is_success else _refusal(answer)
            leaves_after = chance.randint(1, 6) if kind == "leaves" else 0
            async with http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
                if not answer.is_success:
                    await answer.aread()
                    return _refusal(answer)
                return await _read_events(answer, leaves_after)
        except httpx.HTTPError as error:
            return f"connection: {type(error).__name__}"


async def _read_events(answer: httpx.Response, leaves_after: int) -> str:
    events = 0
    async for line in answer.aiter_lines():
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            return ""
        events += 1
        if '"error"' in data[:64]:
            found = json.loads(data).get("error") or {}
            return f"event: {found.get('code') or found.get('type') or 'error'}"
        if leaves_after and events >= leaves_after:
            return "left"
    return "the stream ended early"


def _refusal(answer: httpx.Response) -> str:
    reason = answer.headers.get("x-ryz-reason", "")
    return f"{answer.status_code} {reason}".strip()
