"""Carries heartbeats by a process of its own beside the leader, and steps in where that process cannot send.

The process is started again when it has ended or is stopped. Until it sends, the leader sends heartbeats
itself over its main connection. So neither the death nor the freeze of that process is one of the leader.
"""

import asyncio
import os
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import structlog
from msgspec.structs import replace

from services.worker.forking.early_fork import EarlyFork
from services.worker.forking.forked_process import ForkedProcess
from services.worker.leader.heartbeats.heartbeats import STOP_WAIT_S
from services.worker.leader.heartbeats.page import (
    Description,
    HeartbeatPage,
    HeartbeatProcessOptions,
)
from services.worker.leader.heartbeats.process import END, WAKE
from shared import codec, subjects
from shared.bus.api import Bus
from shared.errors import Unavailable
from shared.flow.backoff import Backoff
from shared.host.cpu_pressure import CpuPressure
from shared.host.own_python import module_command, module_environment
from shared.messages import Heartbeat, Vitals

log = structlog.get_logger(__name__)
MODULE = "services.worker.leader.heartbeats.process"
STEP_IN_INTERVALS = 4  # without a heartbeat of the process, after which the leader sends one
STOPPED_S = 0.3  # without a beat of the process, after which it is examined
DEAD_S = (
    120.0  # and after which it is started again; its start alone may take half a minute on a busy machine
)
POLL_S = 0.01


class ProcessCarrier:
    """Implements `HeartbeatCarrier`.

    Args:
        early: The process for the first start, if it was forked already.
        clock: Returns monotonic seconds.

    Attributes:
        starts: How often the process was started.
    """

    def __init__(
        self,
        bus: Bus,
        options: HeartbeatProcessOptions,
        early: EarlyFork | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.starts = 0
        self._early = early
        self._bus = bus
        self._options = options
        self._clock = clock
        self._page: HeartbeatPage | None = None
        self._newest: Heartbeat | None = None
        self._seq = 0  # of the leader's next own heartbeat
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._control = -1
        self._started_at = 0.0
        self._start_at = 0.0  # the next start, while there is no process
        self._pressure = CpuPressure()
        self._pauses = Backoff(first_s=0.1, longest_s=DEAD_S)

    @property
    def pid(self) -> int:
        """The process id; 0 if there is none at present."""
        return self._process.pid if self._process is not None else 0

    async def start(self, first: Heartbeat) -> None:
        """See `HeartbeatCarrier.start`."""
        self._newest = first
        await self._bus.publish(subjects.heartbeat(first.group), self._numbered(first))
        self._page = HeartbeatPage.create(self._options)
        self._write(self._page, first, self._clock())
        self._start_process(self._page)

    def describe(self, heartbeat: Heartbeat) -> None:
        """See `HeartbeatCarrier.describe`."""
        page, now = self._page, self._clock()
        if page is None:
            return
        self._newest = heartbeat
        if self._carries(page, now):
            self._write(page, heartbeat, now)
            return
        self._send_own(heartbeat)
        self._write(page, heartbeat, now)
        self._watch_process(page, now)

    def send_soon(self) -> None:
        """See `HeartbeatCarrier.send_soon`."""
        page = self._page
        if page is None or self._newest is None:
            return
        if self._carries(page, self._clock()):
            self._send_order(WAKE)
        else:
            self._send_own(self._newest)

    async def stop(self) -> None:
        """See `HeartbeatCarrier.stop`."""
        page, self._page = self._page, None
        if page is None:
            return
        began, process = self._clock(), self._process
        self._send_order(END)
        give_up_at = began + STOP_WAIT_S
        while process is not None and process.poll() is None and self._clock() < give_up_at:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        if self._newest is not None and page.sent().sent_at < began:
            self._seq = max(self._seq, page.sent().next_seq)
            self._send_own(self._newest)
        self._end_process()
        page.close()

    def _carries(self, page: HeartbeatPage, now: float) -> bool:
        """True if the process has sent a heartbeat lately."""
        return now - page.sent().sent_at <= STEP_IN_INTERVALS * self._options.interval_s

    def _write(self, page: HeartbeatPage, heartbeat: Heartbeat, now: float) -> None:
        page.write_description(Description(heartbeat, now, self._seq))

    def _send_own(self, heartbeat: Heartbeat) -> None:
        if self._page is not None:
            self._seq = max(self._seq, self._page.sent().next_seq)
        with suppress(Unavailable):
            self._bus.publish_now(subjects.heartbeat(heartbeat.group), self._numbered(heartbeat))

    def _numbered(self, heartbeat: Heartbeat) -> bytes:
        vitals = Vitals(leader="", pressure=self._pressure.read(self._clock()))
        data = codec.encode(replace(heartbeat, seq=self._seq, vitals=vitals))
        self._seq += 1
        return data

    def _watch_process(self, page: HeartbeatPage, now: float) -> None:
        """Starts the process again where it has ended or stands still."""
        process = self._process
        if process is None:
            if now >= self._start_at:
                self._start_process(page)
            return
        still_s = now - max(page.sent().turned_at, self._started_at)
        if process.poll() is not None:
            why = f"it ended with {process.returncode}"
        elif still_s > DEAD_S:
            why = "it does not answer"
        elif still_s > STOPPED_S and _is_stopped(process.pid):
            why = "it is stopped"
        else:
            return
        log.warning("the process that sends heartbeats starts again", why=why, pid=process.pid)
        if now - self._started_at > DEAD_S:
            self._pauses.reset()
        self._end_process()
        self._seq = max(self._seq, page.sent().next_seq)
        self._start_at = now + self._pauses.next_s()

    def _start_process(self, page: HeartbeatPage) -> None:
        reading, self._control = os.pipe()
        os.set_blocking(self._control, False)
        early, self._early = self._early, None
        try:
            self._process = _start(early, (page.fd, reading))
        except OSError as error:  # too many processes, or no memory
            log.warning("heartbeats have no process of their own", problem=str(error))
            os.close(self._control)
            self._control = -1
            self._start_at = self._clock() + self._pauses.next_s()
        finally:
            os.close(reading)
        self._started_at = self._clock()
        self.starts += 1

    def _end_process(self) -> None:
        """Kills the process if it still runs, and closes its pipe."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
        if self._control >= 0:
            os.close(self._control)
            self._control = -1

    def _send_order(self, order: bytes) -> None:
        with suppress(BlockingIOError, BrokenPipeError):
            if self._control >= 0:
                os.write(self._control, order)


def _start(early: EarlyFork | None, descriptors: tuple[int, int]) -> subprocess.Popen[bytes] | ForkedProcess:
    if early is not None:
        return early.order(descriptors, [str(os.getpid())])
    return subprocess.Popen(
        [*module_command(MODULE), *map(str, descriptors), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        env=module_environment(os.environ),
        pass_fds=descriptors,
    )


def _is_stopped(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split(None, 1)[0] in {b"T", b"t"}
