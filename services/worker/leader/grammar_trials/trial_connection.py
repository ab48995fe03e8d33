"""The leader's connection to its trial process: starts it, sends trials, and receives verdicts."""

import asyncio
import os
import socket
import subprocess

import msgspec

from services.worker.forking.early_fork import EarlyFork
from services.worker.forking.forked_process import ForkedProcess
from services.worker.leader.grammar_trials.trial_messages import (
    LENGTH_BYTES,
    READY,
    Trial,
    TrialResult,
    TrialSetup,
    frame_of,
)
from shared.host.own_python import module_command, module_environment

MODULE = "services.worker.leader.grammar_trials.trial_process"
COMMAND = module_command(MODULE)


class TrialProcessEnded(Exception):
    """The trial process ended before it gave a verdict."""


class TrialConnection:
    """A trial process that was started. Made in the thread of the event loop, whose end ends the process.

    Args:
        early: The process, if it was forked already.

    Raises:
        OSError: The process could not be started.
    """

    def __init__(self, early: EarlyFork | None = None) -> None:
        self._number = READY
        self._waiting: dict[int, asyncio.Future[TrialResult]] = {}
        self._verdicts = msgspec.msgpack.Decoder(TrialResult)
        self._writer: asyncio.StreamWriter | None = None
        self._sock, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = _start(early, theirs.fileno())
        except BaseException:
            self._sock.close()
            raise
        self.gone = False
        self._reading: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    async def begin(self, setup: TrialSetup) -> None:
        """Sends vocabulary and limits, and returns when trials are served.

        Raises:
            TrialProcessEnded: The process ended before.
        """
        reader, self._writer = await asyncio.open_connection(sock=self._sock)
        self._reading = asyncio.create_task(self._read_verdicts(reader))
        await self._ask(READY, setup)

    async def compile_on_trial(self, form: bytes) -> TrialResult:
        """Returns what came of a trial.

        Raises:
            TrialProcessEnded: The process ended before.
        """
        self._number += 1
        return await self._ask(self._number, Trial(self._number, form))

    async def _ask(self, number: int, message: TrialSetup | Trial) -> TrialResult:
        if self.gone or self._writer is None:
            raise TrialProcessEnded
        waiting: asyncio.Future[TrialResult] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        self._writer.write(frame_of(message))
        try:
            return await waiting
        finally:
            self._waiting.pop(number, None)

    def end(self) -> None:
        """Ends the process and all of its trials."""
        self.gone = True
        if self._reading is not None:
            self._reading.cancel()
        if self._writer is not None:
            self._writer.transport.abort()
        else:
            self._sock.close()
        self._process.kill()  # which ends its trials, too
        self._process.wait()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(TrialProcessEnded())

    async def _read_verdicts(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                head = await reader.readexactly(LENGTH_BYTES)
                verdict = self._verdicts.decode(await reader.readexactly(int.from_bytes(head, "big")))
                waiting = self._waiting.get(verdict.number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(verdict)
        except (asyncio.IncompleteReadError, ConnectionError, msgspec.MsgspecError):
            self.end()


def _start(early: EarlyFork | None, descriptor: int) -> subprocess.Popen[bytes] | ForkedProcess:
    if early is not None:
        return early.order([descriptor], [str(os.getpid())])
    return subprocess.Popen(
        [*COMMAND, str(descriptor), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=2,
        env=module_environment(os.environ),
        pass_fds=(descriptor,),
        process_group=0,  # Ctrl-C in a terminal is for the leader
    )
