"""Watches whether a remote server is still there, while it brings nothing by itself."""

import asyncio
from collections.abc import Callable

from services.worker.guests.remote.load_metrics import read_load
from services.worker.guests.remote.options import RemoteOptions
from services.worker.guests.remote.probing.server_facts import ServerFacts
from services.worker.guests.remote.wire.remote_http import RemoteHttp
from services.worker.guests.remote.wire.server_error import ServerError

_LATE_ALLOWED = 2  # checks in a row without an answer


class HealthWatch:
    """The watch of one server.

    Args:
        num_tokens: Tells how many tokens all streams have brought; a server that brings some is not asked.
        on_failure: Called once, with one sentence, when it is gone.

    Attributes:
        load: What its metrics said last; empty: it has none.
    """

    def __init__(
        self,
        http: RemoteHttp,
        options: RemoteOptions,
        facts: ServerFacts,
        *,
        num_tokens: Callable[[], int],
        on_failure: Callable[[str], None],
    ) -> None:
        self._http = http
        self._options = options
        self._facts = facts
        self._num_tokens = num_tokens
        self._on_failure = on_failure
        self._hurry = asyncio.Event()
        self.load: dict[str, float] = {}

    def hurry(self) -> None:
        """Check at once: a stream was lost."""
        self._hurry.set()

    async def run(self) -> None:
        """Check until the server is gone."""
        late, before = 0, -1
        while True:
            hurried = await self._pause()
            brought = self._num_tokens()
            if brought == before or hurried:
                why, gone = await self._check()
                late = late + 1 if why else 0
                if gone or late >= _LATE_ALLOWED:
                    self._on_failure(f"the server at {self._options.host} {why}")
                    return
                if why:
                    self._hurry.set()  # a stall is told from a short one by the next check, not by a pause
            else:
                late = 0
            before = brought
            await self._read_load()

    async def _pause(self) -> bool:
        """Wait for the next check; returns True if it was called for."""
        try:
            async with asyncio.timeout(self._options.health_interval_s):
                await self._hurry.wait()
        except TimeoutError:
            return False
        self._hurry.clear()
        return True

    async def _check(self) -> tuple[str, bool]:
        """Return what is wrong, and whether the server is gone for sure."""
        try:
            reply = await self._http.get(self._facts.health_path, self._options.health_timeout_s)
        except ServerError as error:
            return str(error), error.gone
        if reply.status >= 500:
            return f"says by its health check that it cannot serve (status {reply.status})", True
        return "", False

    async def _read_load(self) -> None:
        if not self._facts.has_metrics:
            return
        try:
            reply = await self._http.get("/metrics", self._options.health_timeout_s)
        except ServerError:
            self.load = {}
            return
        self.load = read_load(reply.body) if reply.status == 200 else {}
