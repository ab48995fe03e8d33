"""Starts all services at once, keeps them running, and ends them in order within a bounded time.

`plan.py` decides what runs, `supervised.py` keeps one service. A service that may go can
be added and ended while the others run.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from cli.console import CommandError, StartReport
from cli.stack.forking.servers import ForkServers
from cli.stack.state import StackState, StateDir, log_tail
from cli.stack.supervision.process import ServiceProcess, ServiceSpec
from cli.stack.supervision.supervised import Supervised

HOUSEKEEPING_S = 30.0

OnGone = Callable[[str, int], None]


@dataclass(slots=True, eq=False)
class _Service:
    """One service of the stack, the task that keeps it, and what `Stack.may_go` was given for it."""

    supervised: Supervised
    keeping: asyncio.Task[None] | None = None
    on_gone: OnGone | None = None

    @property
    def child(self) -> ServiceProcess:
        """Its process."""
        return self.supervised.child


class Stack:
    """The processes of one stack. `start` may be called once."""

    def __init__(
        self,
        specs: list[ServiceSpec],
        state_dir: StateDir,
        state: StackState,
        report: StartReport,
        listeners: Mapping[tuple[str, int], socket.socket] = MappingProxyType({}),
        *,
        imports: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        """Runs nothing yet.

        Args:
            state_dir: Logs and state are kept there.
            state: What the state file has.
            report: Called with what happens, for a person.
            listeners: Listening sockets by address and port; they are closed when the stack ends.
            imports: Modules that fork servers import, by the server's name.
        """
        self._dir = state_dir
        self._state = state
        self._report = report
        self._listeners = listeners
        self._forks = ForkServers(imports, state_dir.log, report.note)
        self._services: dict[str, _Service] = {}
        self._grace_s: dict[int, float] = {}  # of each phase of the end
        self._forks.collect_others(lambda: {one.child.pid for one in self._services.values()})
        self._stop = asyncio.Event()
        self._kill = asyncio.Event()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._housekeeper: asyncio.Task[None] | None = None
        for spec in specs:
            self._take(spec)

    def _take(self, spec: ServiceSpec) -> _Service:
        listener = self._listeners.get(spec.listens_at or ("", 0))
        child = ServiceProcess(spec, self._dir.log(spec.name), listener, self._forks)
        supervised = Supervised(child, self._on_ready, self._report.note, self._save)
        service = self._services[spec.name] = _Service(supervised)
        self._state.services.append(supervised.entry)
        self._grace_s[spec.stop_phase] = max(spec.grace_s, self._grace_s.get(spec.stop_phase, 0.0))
        self._state.stop_s = sum(self._grace_s.values())
        return service

    def request_stop(self) -> None:
        """Have `start` or `supervise` return: the first call drains, the second kills at once."""
        (self._kill if self._stop.is_set() else self._stop).set()

    async def start(
        self, timeout_s: float, before_ready: Callable[[], Awaitable[None]] | None = None
    ) -> bool:
        """Start everything; True when all services are ready, False when a stop was requested meanwhile.

        Args:
            timeout_s: For the services together.
            before_ready: Done when they are ready, before the stack counts as ready.

        Raises:
            CommandError: a service keeps dying, refuses its settings, or is not ready in time.
        """
        self._dir.write(self._state)
        first = list(self._services.values())
        for service in first:
            self._report.waiting(service.supervised.name)
            self._begin(service)
        self._housekeeper = asyncio.create_task(self._housekeeping(), name="housekeeping")
        try:
            async with asyncio.timeout(timeout_s):
                await self._until(_all_ready(first))
        except TimeoutError:
            late = [service for service in first if not service.supervised.was_ready.is_set()]
            names = ", ".join(service.supervised.name for service in late)
            log = late[0].child.log
            raise CommandError(
                f"Not ready within {timeout_s:g} s: {names}. Give it more time with `--start-timeout`, or "
                f"see {log}, which ends with:\n{log_tail(log)}"
            ) from None
        if self._stop.is_set():
            return False
        if before_ready is not None:
            await before_ready()
        self._state.ready = True
        self._save()
        return True

    async def supervise(self) -> None:
        """Return when a stop was requested. Raises `CommandError` when a service cannot be kept alive."""
        await self._until(self._stop.wait())

    def ready_at(self, name: str) -> float | None:
        """When a service was ready last, in monotonic seconds; None while it is not, or not there."""
        service = self._services.get(name)
        return service.supervised.ready_at if service is not None else None

    def pid(self, name: str) -> int:
        """The process id of a service; 0: it does not run."""
        service = self._services.get(name)
        return service.child.pid if service is not None and service.child.running else 0

    def may_go(self, name: str, on_gone: OnGone) -> None:
        """Let a service end for good without the stack's end.

        Args:
            on_gone: Called when it has, with the reason and the exit code; empty: it was asked to. The
                reason is what the service has said itself, if it could not start.
        """
        self._services[name].on_gone = on_gone

    def add(self, spec: ServiceSpec, on_gone: OnGone) -> None:
        """Start one more service; `on_gone` as for `may_go`."""
        service = self._take(spec)
        service.on_gone = on_gone
        self._begin(service)

    async def end(self, name: str, drain: Callable[[], Awaitable[bool]], timeout_s: float) -> None:
        """End a service that may go; returns when it has ended.

        Args:
            drain: Asks it to end what it does and then to end; False: it could not be asked.
            timeout_s: After so long it gets SIGTERM, and is killed after its own time for that.
        """
        service = self._services[name]
        child, keeping = service.child, service.keeping
        assert keeping is not None
        service.supervised.leaves = True
        if child.running and await drain():
            await asyncio.wait([keeping], timeout=timeout_s)
        await self._terminate([service])
        if not keeping.done() and not child.running:  # it is between two starts, or in one
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await self._terminate([service])
        await asyncio.gather(keeping, return_exceptions=True)
        if self._services.get(name) is service:
            self._forget(service, "", 0)

    def _begin(self, service: _Service) -> None:
        service.keeping = asyncio.create_task(self._keep(service), name=service.supervised.name)

    def _forget(self, service: _Service, why: str, code: int) -> None:
        """A service has ended for good."""
        del self._services[service.supervised.name]
        self._state.services.remove(service.supervised.entry)
        self._save()
        assert service.on_gone is not None
        service.on_gone(why, code)

    async def close(self) -> None:
        """Drain in order, and kill what does not end in time; takes about `StackState.stop_s` at most."""
        self._stop.set()
        services = list(self._services.values())
        tasks = [task for task in (self._housekeeper, *(one.keeping for one in services)) if task is not None]
        for task in tasks:
            task.cancel()
        self._forks.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        for listener in self._listeners.values():  # nothing would take what waits there
            listener.close()
        for phase in sorted({one.child.spec.stop_phase for one in services}):
            await self._terminate([one for one in services if one.child.spec.stop_phase == phase])
        await self._forks.await_orphans()
        if not self._failure.done():
            self._failure.cancel()

    async def _terminate(self, services: Sequence[_Service]) -> None:
        """Ask those that run to end, and kill those that do not end in time."""
        running = [one.child for one in services if one.child.running]
        for child in running:
            child.terminate()
        await asyncio.gather(*(self._await_end(child) for child in running))

    async def _await_end(self, child: ServiceProcess) -> None:
        ended = asyncio.create_task(child.wait())
        at_once = asyncio.create_task(self._kill.wait())
        await asyncio.wait({ended, at_once}, timeout=child.spec.grace_s, return_when=asyncio.FIRST_COMPLETED)
        at_once.cancel()
        if not ended.done():
            why = "at once" if self._kill.is_set() else f"after {child.spec.grace_s:.1f} s"
            self._report.note(f"{child.spec.name} did not end by itself; killed {why}")
            child.kill()
        await ended

    async def _until(self, awaited: Coroutine[Any, Any, object]) -> None:
        """Wait for that, for a requested stop, or for the failure (which is raised)."""
        work = asyncio.create_task(awaited)
        stop = asyncio.create_task(self._stop.wait())
        try:
            events: set[asyncio.Future[Any]] = {work, stop, self._failure}
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                self._failure.result()
        finally:
            for task in (work, stop):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def _keep(self, service: _Service) -> None:
        ended = await service.supervised.keep()
        name, log = service.supervised.name, service.child.log
        if service.supervised.leaves:
            self._forget(service, "", 0)
        elif service.on_gone is not None:
            problem = f": {ended.problem}" if ended.problem else ""
            self._report.note(f"{name} {ended.what}{problem}; its log is {log}")
            self._forget(service, ended.problem or f"{name} {ended.what}; its log is {log}", ended.code)
        elif not self._failure.done():
            text = f"{name} {ended.what}. Its log, {log}, ends with:\n{log_tail(log)}"
            self._failure.set_exception(CommandError(text))

    def _on_ready(self, name: str, again: bool) -> None:
        if again or self._state.ready:
            self._report.note(f"{name} is ready{' again' if again else ''}")
        else:
            self._report.ready(name)

    def _save(self) -> None:
        """Write the state file; a full disk is reported, and the services go on."""
        try:
            self._dir.write(self._state)
        except OSError as error:
            self._report.note(
                f"the state of the stack cannot be written to {self._dir.path}: {error.strerror}"
            )

    async def _housekeeping(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            for service in list(self._services.values()):
                await asyncio.to_thread(service.child.trim_log)


async def _all_ready(services: Sequence[_Service]) -> None:
    for service in services:
        await service.supervised.was_ready.wait()
