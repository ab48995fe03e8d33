"""The process beside a leader that sends its heartbeats: `python -m ...heartbeat_process PAGE CONTROL PID`.

It sleeps most of the time, so the kernel gives it a core soon even where many processes wait for one, and it
shares no interpreter lock with the leader. It observes the leader, and reports at once when that has ended,
is frozen or hangs. It ends by a byte on its control pipe, or when that breaks, and never by a signal that is
meant for the leader.
"""

import asyncio
import os
import signal
import sys
from contextlib import suppress

import structlog

from services.worker.leader.heartbeats.leader_watch import ProcessWatch
from services.worker.leader.heartbeats.page import (
    HeartbeatPage,
    HeartbeatProcessOptions,
    SentHeartbeats,
)
from services.worker.leader.heartbeats.sender import HeartbeatSender, NewestDescription
from shared.bus.nats import NatsBus
from shared.errors import RyzError
from shared.telemetry.logs.setup import write_lines
from shared.tls import broker_context

log = structlog.get_logger(__name__)
WAKE, END = b"w", b"e"
LAST_S = 1.0  # for the last heartbeat to reach the broker
END_S = 2  # after which the kernel ends this process, whatever it waits for
DOUBT_INTERVALS = 2  # age of a leader's description from which its process is examined


class HeartbeatProcess:
    """Sends what the page describes until the control pipe ends it.

    Args:
        page: Shared with the leader.
        control: The reading end of the pipe; the leader has the only writing end.
        leader_pid: The leader, parent of this process.
    """

    def __init__(self, page: HeartbeatPage, control: int, leader_pid: int) -> None:
        self._page = page
        self._control = control
        self._options = page.options()
        interval_s, stale_s = self._options.interval_s, self._options.stale_s
        self._watch = ProcessWatch(leader_pid, DOUBT_INTERVALS * interval_s, stale_s)
        self._sender = HeartbeatSender(interval_s, self._newest, self._watch)
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Connects, sends, and returns at the end."""
        loop = asyncio.get_running_loop()
        os.set_blocking(self._control, False)
        loop.add_reader(self._control, self._read_control)
        connecting = asyncio.create_task(connect(self._options))
        ended = asyncio.create_task(self._ended.wait())
        await asyncio.wait({connecting, ended}, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if not connecting.done():
            connecting.cancel()
            return
        bus = await connecting
        await self._sender.run(bus, self._note_sent)
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_S):
                await bus.close()

    def _newest(self) -> NewestDescription:
        described = self._page.description()
        if described is None:
            return None
        self._sender.seq = max(self._sender.seq, described.least_seq + 1)
        return described.heartbeat, described.described_at

    def _note_sent(self) -> None:
        sender = self._sender
        self._page.write_sent(SentHeartbeats(sender.seq, asyncio.get_running_loop().time(), sender.sent_at))

    def _read_control(self) -> None:
        with suppress(BlockingIOError):
            data = os.read(self._control, 64)
            if not data:
                self._watch.note_end()
            if not data or END in data:
                signal.alarm(END_S)  # a connection that is being made does not always heed its end
                asyncio.get_running_loop().remove_reader(self._control)
                self._ended.set()
                self._sender.end()
            else:
                self._sender.wake()


async def connect(options: HeartbeatProcessOptions) -> NatsBus:
    """Connects to the broker; raises like `NatsBus.connect`."""
    return await NatsBus.connect(
        options.nats_url,
        name=options.connection,
        connect_wait_s=options.connect_wait_s,
        inbox=options.nats_inbox,
        tls=broker_context(options.nats_ca, options.nats_cert, options.nats_key),
        local=options.nats_local,
    )


def main() -> None:
    """Runs the process; the arguments are two descriptors and the process id of the leader."""
    page_fd, control, leader_pid = map(int, sys.argv[1:4])
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # the leader ends it
    page = HeartbeatPage(page_fd)
    options = page.options()
    names = {"service": "worker", "instance": options.instance_id, "role": "heartbeats"}
    names |= {"group": options.group} if options.group else {}
    write_lines(names, level=options.log_level, form=options.log_format, burst=options.log_burst)

    async def run() -> None:
        await HeartbeatProcess(page, control, leader_pid).run()

    try:
        asyncio.run(run())
    except RyzError as error:
        log.warning("heartbeats cannot be sent", problem=error.message)
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
