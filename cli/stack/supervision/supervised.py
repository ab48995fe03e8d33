"""One service of a stack: started, probed, and started again when it dies, until that makes no sense."""

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from cli.stack.state import ServiceState
from cli.stack.supervision.process import ServiceProcess, explain_exit
from cli.stack.supervision.restarts import RestartPolicy
from shared.host.oom_kills import oom_kills

PROBE_INTERVAL_S = 0.1


class ServiceEnd(NamedTuple):
    """The end of a service that is not started again: what became of it, in words, and its exit code.

    Attributes:
        problem: Why it could not start, as it has said itself; empty: it has not.
    """

    what: str
    code: int
    problem: str = ""


class Supervised:
    """One service. Run `keep` as a task.

    Args:
        child: Its process.
        on_ready: Called when it is ready; True: it was so before.
        note: Called with what happens to it, for a person.
        save: Called when `entry` has changed.

    Attributes:
        entry: It in the state file.
        was_ready: Set when it is ready for the first time.
        ready_at: When it was ready last, in monotonic seconds; None while it is not.
        leaves: Set it to have the service not started again.
    """

    def __init__(
        self,
        child: ServiceProcess,
        on_ready: Callable[[str, bool], None],
        note: Callable[[str], None],
        save: Callable[[], None],
    ) -> None:
        self.child = child
        self.entry = ServiceState(child.spec.name, model=child.spec.model)
        self.was_ready = asyncio.Event()
        self.ready_at: float | None = None
        self.leaves = False
        self._on_ready = on_ready
        self._note = note
        self._save = save

    @property
    def name(self) -> str:
        """The service's name."""
        return self.entry.name

    async def keep(self) -> ServiceEnd:
        """Start it until the policy gives up, or it leaves.

        One that was never ready gets two tries, unless it was killed from outside: a long start, as on a busy
        machine, is hit more often, and says nothing of the next one.
        """
        policy, child, entry = RestartPolicy(), self.child, self.entry
        while True:
            try:
                await child.start()
            except OSError as error:  # no process or no log can be had
                return ServiceEnd(f"could not be started: {error}", 1)
            oom_before = oom_kills()
            entry.pid = child.pid
            self._save()
            if self.leaves:
                child.terminate()
            probing = asyncio.create_task(self._probe())
            try:
                code = await child.wait()
            finally:
                probing.cancel()
                with suppress(asyncio.CancelledError):
                    await probing
            now, ready_at = time.monotonic(), self.ready_at
            entry.ready, self.ready_at = False, None
            served_s = now - ready_at if ready_at is not None else 0.0
            memory_short = oom_kills() > oom_before
            pause = policy.pause_after(code, now, served_s, memory_short=memory_short)
            killed = code == -signal.SIGKILL and not memory_short
            hopeless = entry.restarts > 0 and not self.was_ready.is_set() and not killed
            if self.leaves or pause is None or hopeless:
                after = f" and was started again {entry.restarts} times before" if entry.restarts else ""
                return ServiceEnd(f"ended ({explain_exit(code)}){after}", code, child.start_problem())
            entry.restarts += 1
            how = "died" if code else "ended by itself"  # as after a drain
            self._note(f"{self.name} {how} ({explain_exit(code)}); starting it again in {pause:g} s")
            await asyncio.sleep(pause)

    async def _probe(self) -> None:
        child = self.child
        # another program may answer at the address of a child that has ended
        while not (await child.spec.probe() and child.running):  # noqa: ASYNC110 (another process has no event)
            await asyncio.sleep(PROBE_INTERVAL_S)
        self.entry.ready, self.ready_at = True, time.monotonic()
        self._save()
        again = self.was_ready.is_set()
        self.was_ready.set()
        self._on_ready(self.name, again)
