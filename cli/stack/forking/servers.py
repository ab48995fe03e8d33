"""The fork servers of one stack, and the children that come with them."""

import asyncio
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from cli.stack.forking.adopted import AdoptedProcess, adopt_orphans, collect_orphans, has_children
from cli.stack.forking.client import ForkServerGone, ServiceForkServer
from cli.stack.forking.messages import ForkService

_COLLECT_AGAIN_S = 0.05
_ORPHANS_S, _ORPHANS_POLL_S = 5.0, 0.01  # they end at once, and on a busy machine a moment later


class ForkServers:
    """Starts the servers at once, so that they import while the stack is started. One event loop only.

    Without a server, which is so where the kernel cannot have orphans adopted, and after a server has ended,
    `fork` returns None and services start by interpreters of their own.

    Args:
        modules: What each server imports, by its name.
        log: Gives the path of a log by its name.
        note: Called with a line for a person when a server is gone.
    """

    def __init__(
        self,
        modules: Mapping[str, Sequence[str]],
        log: Callable[[str], Path],
        note: Callable[[str], None],
    ) -> None:
        self._note = note
        self._servers: dict[str, ServiceForkServer] = {}
        self._forked: list[AdoptedProcess] = []
        self._own: Callable[[], Collection[int]] = tuple
        self._adopts = bool(modules) and adopt_orphans()
        if self._adopts:
            for name, imported in modules.items():
                self._servers[name] = ServiceForkServer(imported, log(f"forks-{name}"))

    def collect_others(self, own: Callable[[], Collection[int]]) -> None:
        """From now on collect children that have ended, but for those forked here and these process ids."""
        if self._servers:
            self._own = own
            asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._collect)

    async def is_ready(self, server: str) -> bool:
        """Return True once the server has imported its modules, False if there is none."""
        found = self._servers.get(server)
        if found is None:
            return False
        try:
            await found.import_modules()
        except ForkServerGone as error:
            self._drop(server, error)
            return False
        return True

    async def fork(
        self, server: str, request: ForkService, descriptors: Sequence[int]
    ) -> AdoptedProcess | None:
        """Fork a service when the server is ready; None if it is gone. Not to be cancelled."""
        found = self._servers.get(server)
        if found is None:
            return None
        try:
            process = await found.fork(request, descriptors)
        except ForkServerGone as error:
            self._drop(server, error)
            return None
        # noted in the same step of this task: it may have ended already, and must not be taken for an orphan
        self._forked = [one for one in self._forked if one.returncode is None] + [process]
        return process

    def _drop(self, server: str, error: ForkServerGone) -> None:
        found = self._servers.pop(server, None)
        if found is not None:
            found.close()
            self._note(
                f"the process that services are forked from ({server}) is gone: {error}; services start "
                f"without it, which takes longer ({found.log} may say why)"
            )

    def close(self) -> None:
        """End the servers; services that they forked go on."""
        for server in self._servers.values():
            server.close()
        self._servers.clear()

    async def await_orphans(self) -> None:
        """Return when the orphans have ended, which a killed service leaves behind; after `close`.

        Call it when all services have ended. What still runs after some seconds is not waited for.
        """
        until = time.monotonic() + _ORPHANS_S
        while self._adopts and has_children() and time.monotonic() < until:
            self._collect()
            await asyncio.sleep(_ORPHANS_POLL_S)

    def _collect(self) -> None:
        servers = self._servers.values()
        forked = (process.pid for process in self._forked if process.returncode is None)
        busy = any(server.in_flight for server in servers)
        if busy or not collect_orphans({*self._own(), *forked, *(server.pid for server in servers)}):
            asyncio.get_running_loop().call_later(_COLLECT_AGAIN_S, self._collect)
