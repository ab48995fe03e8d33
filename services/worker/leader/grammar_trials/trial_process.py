"""The process that trials are forked from; its arguments are a socket and the process id of the leader.

It has one thread, so that a fork loses none. It imports what trials need and makes the vocabulary once, then
forks a process for each trial, and reports how that ended. It compiles no caller's grammar itself, and ends
with its leader.
"""

import contextlib
import gc
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from services.worker.leader.grammar_trials.trial_messages import (
    LENGTH_BYTES,
    READY,
    Outcome,
    Trial,
    TrialResult,
    TrialSetup,
    frame_of,
)
from services.worker.leader.grammar_trials.trial_run import end_with_parent, run_trial
from services.worker.rank_protocol.run_config import STRETCH
from services.worker.text.grammars.structured_grammar import compile_structured
from services.worker.text.grammars.token_vocabulary import TokenVocabulary
from shared.messages import StructuredOutput

if TYPE_CHECKING:
    from services.worker.text.tokenizer import Tokenizer

_CHUNK_BYTES = 2**16
_BY_SIGNAL: dict[int, Outcome] = {
    signal.SIGPROF: "slow",
    signal.SIGXCPU: "slow",
    signal.SIGABRT: "large",
    signal.SIGSEGV: "large",
    signal.SIGBUS: "large",
    signal.SIGKILL: "starved",
}


class TokenTable:
    """The leader's vocabulary without its tokenizer: the part of `Tokenizer` that a `TokenVocabulary` needs.

    It tokenizes nothing, so forced texts are spelled with the longest tokens. That changes which tokens an
    answer would get, and neither masks nor what is refused.
    """

    has_token_bytes = True
    special_texts: frozenset[str] = frozenset()

    def __init__(self, tokens: list[bytes], special_ids: list[int]) -> None:
        self._tokens = tokens
        self.special_ids = frozenset(special_ids)
        self.vocab_size = len(tokens)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Returns nothing."""
        return []

    def without(self, texts: Set[str]) -> "TokenTable":
        """Returns itself."""
        return self

    def token_text(self, token_id: int) -> str:
        """See `Tokenizer`."""
        return self._tokens[token_id].decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """See `Tokenizer`."""
        return self._tokens[token_id]


def vocabulary_of(setup: TrialSetup) -> TokenVocabulary:
    """Returns a vocabulary with the masks of the leader's."""
    table = cast("Tokenizer", TokenTable(setup.tokens, setup.special_ids))
    vocabulary = TokenVocabulary(table, frozenset(setup.ends), setup.vocab_size)
    vocabulary.unspelled("")  # computes what all trials need; so does a compilation
    compile_structured(StructuredOutput(kind="json_object"), vocabulary, setup.limits)
    return vocabulary


@dataclass(slots=True)
class _Running:
    number: int
    pid: int
    deadline_s: float
    report: bytearray = field(default_factory=bytearray)
    reported: bool = False


class TrialProcess:
    """Forks trials on request.

    Args:
        sock: Connected to the leader.
    """

    def __init__(self, sock: socket.socket, setup: TrialSetup) -> None:
        self._sock = sock
        self._setup = setup
        self._vocabulary = vocabulary_of(setup)
        self._running: dict[int, _Running] = {}  # by the descriptor of the report
        self._selector = selectors.DefaultSelector()
        self._trials = msgspec.msgpack.Decoder(Trial)

    def serve_trials(self) -> None:
        """Returns when the leader is gone."""
        self._selector.register(self._sock, selectors.EVENT_READ)
        self._sock.sendall(frame_of(TrialResult(READY, "passed")))
        while True:
            ready = {key.fd for key, _ in self._selector.select(self._least_wait_s())}
            for descriptor in ready & self._running.keys():
                self._read_report(descriptor)
            self._kill_overdue()
            if self._sock.fileno() in ready:
                body = receive_frame(self._sock)
                if body is None:
                    return
                self._fork(self._trials.decode(body))

    def kill_all(self) -> None:
        """Ends the trials that run."""
        for running in self._running.values():
            os.kill(running.pid, signal.SIGKILL)

    def _fork(self, trial: Trial) -> None:
        own_pid = os.getpid()
        theirs, ours = os.pipe()[::-1]
        pid = os.fork()
        if pid == 0:
            run_trial(trial, self._vocabulary, self._setup, own_pid, theirs)
        os.close(theirs)
        self._running[ours] = _Running(trial.number, pid, time.monotonic() + STRETCH * self._setup.cpu_s)
        self._selector.register(ours, selectors.EVENT_READ)

    def _read_report(self, descriptor: int) -> None:
        running = self._running[descriptor]
        data = os.read(descriptor, _CHUNK_BYTES)
        if data:
            running.report += data
            self._forward_report(running)
            return
        self._selector.unregister(descriptor)
        os.close(descriptor)
        del self._running[descriptor]
        _, status = os.waitpid(running.pid, 0)  # its end closed the pipe
        if not running.reported:
            outcome = _BY_SIGNAL.get(-os.waitstatus_to_exitcode(status), "unclear")
            self._sock.sendall(frame_of(TrialResult(running.number, outcome)))

    def _forward_report(self, running: _Running) -> None:
        """Sends a whole report on, without waiting for the kernel to take the trial's memory back."""
        size = LENGTH_BYTES + int.from_bytes(running.report[:LENGTH_BYTES], "big")
        if LENGTH_BYTES <= len(running.report) == size:
            running.reported = True
            self._sock.sendall(running.report)

    def _least_wait_s(self) -> float | None:
        deadlines = [running.deadline_s for running in self._running.values()]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _kill_overdue(self) -> None:
        now = time.monotonic()
        for running in self._running.values():
            if now >= running.deadline_s:
                os.kill(running.pid, signal.SIGKILL)
                running.deadline_s = now + 1.0  # its end comes as the end of its report


def receive_frame(sock: socket.socket) -> bytes | None:
    """Returns the body of the next frame; None if the other side is gone."""
    head = _receive(sock, LENGTH_BYTES)
    return None if head is None else _receive(sock, int.from_bytes(head, "big"))


def _receive(sock: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        try:
            part = sock.recv(size - len(data))
        except ConnectionResetError:
            return None
        if not part:
            return None
        data += part
    return bytes(data)


def main() -> int:
    """Runs the trial process; returns the exit code."""
    if not end_with_parent(int(sys.argv[2])):
        return 0
    # where memory is short, the kernel ends these processes before others
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    sock = socket.socket(fileno=int(sys.argv[1]))
    body = receive_frame(sock)
    if body is None:
        return 0
    process = TrialProcess(sock, msgspec.msgpack.decode(body, type=TrialSetup))
    if len(os.listdir("/proc/self/task")) != 1:
        return 1  # a fork would lose the others
    gc.collect()
    gc.freeze()  # a collection would write to the pages that trials share
    try:
        process.serve_trials()
    except (BrokenPipeError, ConnectionResetError):  # the leader is gone
        return 0
    finally:
        process.kill_all()
    return 0


if __name__ == "__main__":
    os._exit(main())
