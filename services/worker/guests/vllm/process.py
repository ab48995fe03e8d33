"""Starts and ends a process of vLLM's environment (`vllm_child/`), and carries messages to and from it.

vLLM starts processes of its own, which all belong to the process group of that one and are killed with it. It
ends by itself when the leader is gone: nothing is written to its lifeline, whose end it waits for.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import structlog

from services.worker.guests.vllm.output_lines import OutputLines
from services.worker.guests.vllm.vllm_child.messages import FromChild, FromLeader, frame_of, read_frame
from services.worker.orchestrator.rank_process_handle import exit_text

log = structlog.get_logger(__name__)
# the package is found behind all that is installed there; processes that vLLM spawns do not run this again
_FOLDER = Path(__file__).resolve().parent
_PROGRAM = f"import sys; sys.path.append({str(_FOLDER)!r}); from vllm_child.main import main; main()"
_POLL_S = 0.01
_EXIT_WAIT_S = 1.0  # from the end of its socket to the end of the process
_LINES_WAIT_S = 0.25  # for what it wrote before; longer, those that wait for an answer should not
_KILL_WAIT_S = 5.0  # a killed process that has not ended by then is stuck in a driver or a disk
_READ_BYTES = 2**16


def vllm_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of vLLM's process: without our paths, settings and secrets."""
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith(("RYZ_", "PYTHON")) and name != "VIRTUAL_ENV"
    }
    return {
        "VLLM_NO_USAGE_STATS": "1",  # else it reports to its makers
        **kept,
        "PYTHONSAFEPATH": "1",  # nothing is imported from the working directory
        "PYTHONUNBUFFERED": "1",
        # a forked one would hold the descriptors at whose ends the leader and this process see each other go
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }


class VllmProcess:
    """One process, from its start to its end.

    Args:
        python: The interpreter of vLLM's environment.
        on_message: Called with all that it sends.
        on_end: Called once with the reason when it ends, or sends what is no message; not after `end`.
    """

    def __init__(
        self, python: str, on_message: Callable[[FromChild], None], on_end: Callable[[str], None]
    ) -> None:
        self._python = python
        self._on_message = on_message
        self._on_end = on_end
        self._output = OutputLines()
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._lifeline = -1
        self._tasks: list[asyncio.Task[None]] = []
        self._ending = False

    @property
    def pid(self) -> int:
        """Process id, which is also that of its process group; 0 before the start."""
        return self._process.pid if self._process is not None else 0

    async def start(self) -> None:
        """Start it.

        Raises:
            OSError: The interpreter cannot be run.
        """
        sock, output = self._spawn()
        reader, self._writer = await asyncio.open_connection(sock=sock)
        self._tasks = [
            asyncio.create_task(self._read_output(output)),
            asyncio.create_task(self._receive(reader)),
        ]

    def send(self, message: FromLeader) -> None:
        """Send a message; a process that is gone gets nothing."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(frame_of(message))

    def explain(self, reason: str) -> str:
        """Return what it wrote about its end, if the reason is that another process of vLLM failed."""
        return self._output.explain(reason)

    def last_error(self) -> str:
        """Return the last error that one of its processes wrote; empty: none."""
        return self._output.cause()

    def kill(self) -> None:
        """Kill all processes of vLLM. Call `end` as well."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def end(self, grace_s: float) -> None:
        """Close the socket, at which it ends itself, and kill what still runs after `grace_s`."""
        self._ending = True
        if self._writer is not None:
            self._writer.close()
        await self._wait_ended(grace_s)
        self.kill()
        await self._collect()
        for task in self._tasks:
            task.cancel()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def _spawn(self) -> tuple[socket.socket, int]:
        """Start the process; return our socket, and the descriptor of what it writes."""
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            sock, their_sock = map(ours.enter_context, socket.socketpair())
            theirs.callback(their_sock.close)
            their_life, lifeline = _pipe(theirs, ours)
            output, their_output = _pipe(ours, theirs)
            self._process = subprocess.Popen(
                [self._python, "-c", _PROGRAM, str(their_sock.fileno()), str(their_life)],
                stdin=subprocess.DEVNULL,
                stdout=their_output,
                stderr=their_output,
                pass_fds=(their_sock.fileno(), their_life),
                env=vllm_environment(os.environ),
                process_group=0,
            )
            ours.pop_all()
        self._lifeline = lifeline
        return sock, output

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        decoder, reason = msgspec.msgpack.Decoder(FromChild), ""
        try:
            while (body := await read_frame(reader)) is not None:
                self._on_message(decoder.decode(body))
        except (ValueError, msgspec.MsgspecError) as error:
            reason = f"it sent what is no message: {error}"
        if not self._ending:
            reason = reason or await self._describe_end()
        if not self._ending:
            self._on_end(reason)

    async def _describe_end(self) -> str:
        """Return how it ended, once the kernel says so, and what it wrote if that may be why."""
        ended = await self._wait_ended(_EXIT_WAIT_S)
        self.kill()
        if not ended or self._process is None:
            return "it has closed its socket"
        await asyncio.wait(self._tasks[:1], timeout=_LINES_WAIT_S)
        code = self._process.wait()
        said = self._output.last_words() if code > 0 else ""
        return f"{exit_text(code)}: {said}" if said else exit_text(code)

    async def _wait_ended(self, limit_s: float) -> bool:
        """Wait for the end of the process, which is not collected: its group keeps its number until then."""
        process, loop = self._process, asyncio.get_running_loop()
        give_up = loop.time() + limit_s
        while process is not None and process.returncode is None and not _has_ended(process.pid):
            if loop.time() >= give_up:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    async def _collect(self) -> None:
        """Collect the killed process, and wait for the end of the pipe that all those of vLLM write to."""
        if await self._wait_ended(_KILL_WAIT_S) and self._process is not None:
            self._process.wait()
        if self._tasks:
            await asyncio.wait(self._tasks[:1], timeout=_KILL_WAIT_S)

    async def _read_output(self, descriptor: int) -> None:
        """Log the lines of all its processes, until the last of them has ended."""
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        pipe = os.fdopen(descriptor, "rb", 0)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        try:
            while data := await reader.read(_READ_BYTES):
                for level, line in self._output.feed(data):
                    write = log.warning if level in ("warning", "error", "critical") else log.info
                    write("vLLM wrote a line", output=line)
        finally:
            transport.close()


def _has_ended(pid: int) -> bool:
    """Return True if a child has ended, without collecting it."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _pipe(reads: contextlib.ExitStack, writes: contextlib.ExitStack) -> tuple[int, int]:
    """Return both ends of a pipe, which are closed with these stacks."""
    read, write = os.pipe()
    reads.callback(os.close, read)
    writes.callback(os.close, write)
    return read, write
