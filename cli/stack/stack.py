"""Starts all services at once, keeps them running, and ends them in order within a bounded time.

`plan.py` decides what runs, `restarts.py` whether a dead service is started again.
"""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from cli.console import CommandError, StartReport
from cli.stack.forking.servers import ForkServers
from cli.stack.process import ServiceProcess, ServiceSpec, explain_exit
from cli.stack.restarts import RestartPolicy
from cli.stack.state import ServiceState, StackState, StateDir, log_tail
from shared.host.oom_kills import oom_kills

PROBE_INTERVAL_S = 0.1
HOUSEKEEPING_S = 30.0

OnGone = Callable[[str, int], None]


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
        self._children = [
            ServiceProcess(
                spec, state_dir.log(spec.name), listeners.get(spec.listens_at or ("", 0)), self._forks
            )
            for spec in specs
        ]
        self._forks.collect_others(lambda: {child.pid for child in self._children})
        self._entries = {spec.name: ServiceState(spec.name, model=spec.model) for spec in specs}
        self._ready = {spec.name: asyncio.Event() for spec in specs}
        self._ready_at: dict[str, float] = {}
        self._on_gone: dict[str, OnGone] = {}
        self._leaving: set[str] = set()
        self._stop = asyncio.Event()
        self._kill = asyncio.Event()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks: list[asyncio.Task[None]] = []
        self._keeping: dict[str, asyncio.Task[None]] = {}
        state.services = list(self._entries.values())
        self._grace_s: dict[int, float] = {}
        for spec in specs:
            self._count_grace(spec)

    def request_stop(self) -> None:
        """Have `start` or `supervise` return: the first call drains, the second kills at once."""
        (self._kill if self._stop.is_set() else self._stop).set()

    async def start(self, timeout_s: float) -> bool:
        """Start everything; True when all services are ready, False when a stop was requested meanwhile.

        Raises:
            CommandError: a service keeps dying, refuses its settings, or is not ready in time.
        """
        self._dir.write(self._state)
        for child in self._children:
            self._report.waiting(child.spec.name)
            self._keeping[child.spec.name] = asyncio.create_task(self._keep(child), name=child.spec.name)
        self._tasks.append(asyncio.create_task(self._housekeeping(), name="housekeeping"))
        try:
            async with asyncio.timeout(timeout_s):
                await self._until(self._all_ready())
        except TimeoutError:
            late = [child for child in self._children if not self._ready[child.spec.name].is_set()]
            names = ", ".join(child.spec.name for child in late)
            raise CommandError(
                f"Not ready within {timeout_s:g} s: {names}. Give it more time with `--start-timeout`, or "
                f"see {late[0].log}, which ends with:\n{log_tail(late[0].log)}"
            ) from None
        if self._stop.is_set():
            return False
        self._state.ready = True
        self._save()
        return True

    async def supervise(self) -> None:
        """Return when a stop was requested. Raises `CommandError` when a service cannot be kept alive."""
        await self._until(self._stop.wait())

    def _count_grace(self, spec: ServiceSpec) -> None:
        phase = spec.stop_phase
        self._grace_s[phase] = max(spec.grace_s, self._grace_s.get(phase, 0.0))
        self._state.stop_s = sum(self._grace_s.values())

    def ready_after_s(self, name: str) -> float | None:
        """Monotonic seconds at which a service was ready last; None while it is not."""
        return self._ready_at.get(name)

    def pid(self, name: str) -> int:
        """The process id of a service; 0: it does not run."""
        return next((child.pid for child in self._children if child.spec.name == name and child.running), 0)

    def may_go(self, name: str, on_gone: OnGone) -> None:
        """Let a service end for good without the stack's end.

        Args:
            on_gone: Called when it has, with the reason and the exit code; empty: it was asked to.
        """
        self._on_gone[name] = on_gone

    def add(self, spec: ServiceSpec, on_gone: OnGone) -> None:
        """Start one more service; `on_gone` as for `may_go`."""
        child = ServiceProcess(spec, self._dir.log(spec.name), forks=self._forks)
        self._children.append(child)
        self._entries[spec.name] = ServiceState(spec.name, model=spec.model)
        self._state.services.append(self._entries[spec.name])
        self._ready[spec.name] = asyncio.Event()
        self._count_grace(spec)
        self.may_go(spec.name, on_gone)
        self._keeping[spec.name] = asyncio.create_task(self._keep(child), name=spec.name)

    async def end(self, name: str, drain: Callable[[], Awaitable[bool]], timeout_s: float) -> None:
        """End a service that may go; returns when it has ended.

        Args:
            drain: Asks it to end what it does and then to end; False: it could not be asked.
            timeout_s: After so long it gets SIGTERM, and is killed after its own time for that.
        """
        child = next(child for child in self._children if child.spec.name == name)
        self._leaving.add(name)
        if child.running and await drain():
            await asyncio.wait([self._keeping[name]], timeout=timeout_s)
        if child.running:
            child.terminate()
            await self._await_end(child)
        if name in self._on_gone:  # between two of its starts: nothing is to be ended
            self._keeping[name].cancel()
            self._forget(child, "", 0)

    def _forget(self, child: ServiceProcess, why: str, code: int) -> None:
        """A service has ended for good."""
        name = child.spec.name
        self._children.remove(child)
        self._state.services.remove(self._entries.pop(name))
        del self._ready[name]
        self._leaving.discard(name)
        self._keeping.pop(name)
        self._save()
        self._on_gone.pop(name)(why, code)

    async def close(self) -> None:
        """Drain in order, and kill what does not end in time; takes about `StackState.stop_s` at most."""
        self._stop.set()
        tasks = [*self._tasks, *self._keeping.values()]
        for task in tasks:
            task.cancel()
        self._forks.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        for listener in self._listeners.values():  # nothing would take what waits there
            listener.close()
        for phase in sorted({child.spec.stop_phase for child in self._children}):
            batch = [child for child in self._children if child.spec.stop_phase == phase and child.running]
            for child in batch:
                child.terminate()
            await asyncio.gather(*(self._await_end(child) for child in batch))
        if not self._failure.done():
            self._failure.cancel()

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

    async def _all_ready(self) -> None:
        for event in list(self._ready.values()):
            await event.wait()

    async def _keep(self, child: ServiceProcess) -> None:
        """Start a child until the policy gives up; one that was never ready gets two tries."""
        policy, entry = RestartPolicy(), self._entries[child.spec.name]
        while True:
            try:
                await child.start()
            except OSError as error:  # no process or no log can be had
                why = f"{child.spec.name} could not be started: {error}"
                if child.spec.name in self._on_gone:
                    self._forget(child, why, 1)
                elif not self._failure.done():
                    self._failure.set_exception(CommandError(f"{why}."))
                return
            oom_before = oom_kills()
            entry.pid = child.pid
            self._save()
            if child.spec.name in self._leaving:
                child.terminate()
            probing = asyncio.create_task(self._probe(child))
            try:
                code = await child.wait()
            finally:
                probing.cancel()
                with suppress(asyncio.CancelledError):
                    await probing
            entry.ready = False
            now = time.monotonic()
            served_s = now - self._ready_at.pop(child.spec.name, now)
            if child.spec.name in self._leaving:
                self._forget(child, "", 0)
                return
            pause = policy.pause_after(code, now, served_s, memory_short=oom_kills() > oom_before)
            hopeless = entry.restarts > 0 and not self._ready[child.spec.name].is_set()
            if pause is None or hopeless:
                self._give_up(child, code, entry.restarts)
                return
            entry.restarts += 1
            how = "died" if code else "ended by itself"  # as after a drain
            self._report.note(
                f"{child.spec.name} {how} ({explain_exit(code)}); starting it again in {pause:g} s"
            )
            await asyncio.sleep(pause)

    def _give_up(self, child: ServiceProcess, code: int, restarts: int) -> None:
        if self._failure.done():
            return
        after = f" and was started again {restarts} times before" if restarts else ""
        ended = f"{child.spec.name} ended ({explain_exit(code)}){after}"
        if child.spec.name in self._on_gone:
            self._forget(child, f"{ended}; its log is {child.log}", code)
            return
        text = f"{ended}. Its log, {child.log}, ends with:\n{log_tail(child.log)}"
        self._failure.set_exception(CommandError(text))

    async def _probe(self, child: ServiceProcess) -> None:
        # another program may answer at the address of a child that has ended
        while not (await child.spec.probe() and child.running):  # noqa: ASYNC110 (another process has no event)
            await asyncio.sleep(PROBE_INTERVAL_S)
        entry = self._entries[child.spec.name]
        entry.ready = True
        self._ready_at[child.spec.name] = time.monotonic()
        self._save()
        was_ready = self._ready[child.spec.name].is_set()
        self._ready[child.spec.name].set()
        if was_ready or self._state.ready:
            self._report.note(f"{child.spec.name} is ready{' again' if was_ready else ''}")
        else:
            self._report.ready(child.spec.name)

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
            for child in self._children:
                await asyncio.to_thread(child.trim_log)
