"""Servers of guests in processes of their own, each behind a proxy: killed, stopped, and started again."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kits.e2e.stack import ROOT
from tests.kits.guests.recording_proxy import RecordingProxy
from tests.kits.waiting import PATIENCE_S

LLAMA_PYTHON, LLAMA_MODEL = "RYZ_TEST_LLAMA_PYTHON", "RYZ_TEST_LLAMA_MODEL"
VLLM_PYTHON, VLLM_MODEL = "RYZ_TEST_VLLM_PYTHON", "RYZ_TEST_VLLM_MODEL"


@contextmanager
def program(*command: str, log: Path, env: dict[str, str] | None = None) -> Iterator["subprocess.Popen[str]"]:
    """A process that is ended with the block."""
    with log.open("a") as errors:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            process_group=0,
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()


def llama_command(*, parallel: int = 4, context: int = 2048, threads: int = 0) -> tuple[list[str], Path]:
    """Returns the command of llama.cpp's server, and its model; skips the test where none is named."""
    python, model = os.environ.get(LLAMA_PYTHON), os.environ.get(LLAMA_MODEL)
    if not python or not model:
        pytest.skip(f"{LLAMA_PYTHON} names no interpreter with xllamacpp, or {LLAMA_MODEL} no GGUF file")
    script = Path(__file__).with_name("llama_program.py")
    sizes = ["--parallel", str(parallel), "--context", str(context), "--threads", str(threads)]
    return [python, str(script), model, *sizes], Path(model)


def vllm_command(**sizes: int) -> list[str] | None:
    """Returns the command of vLLM's own server; None where no interpreter or no model directory is named."""
    python, model = os.environ.get(VLLM_PYTHON), os.environ.get(VLLM_MODEL)
    if not python or not model:
        return None
    options = [part for name, size in sizes.items() for part in (f"--{name}", str(size))]
    return [python, str(Path(__file__).with_name("vllm_program.py")), model, *options]


def false_command(style: str, tokenizer: Path, end_id: int, text: str, *options: str) -> list[str]:
    """Returns the command of a scripted server that takes 10 ms for a token."""
    module = [sys.executable, "-m", "tests.kits.guests.false_server", "--style", style, "--text", text]
    return [*module, "--tokenizer", str(tokenizer), "--end-id", str(end_id), "--behave", "slow", *options]


class GuestServer:
    """A server, which is started by `start` and prints its port when it serves.

    Attributes:
        pid: Of the process that serves.
    """

    def __init__(self, name: str, command: list[str], proxy: RecordingProxy, log: Path) -> None:
        self.name = name
        self.proxy = proxy
        self._command = command
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """Where groups find it, whatever becomes of the process."""
        return f"http://127.0.0.1:{self.proxy.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Starts it; what ran before has ended."""
        with self._log.open("a") as errors:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True, process_group=0
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.strip().isdigit(), f"{self.name} did not start: {self._log.read_text()[-2000:]}"
        self.proxy.target = int(line)

    def kill(self) -> None:
        """Kills it with the processes that it has started, and waits for its end."""
        assert self._process is not None
        assert self._process.stdout is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()

    def signal(self, number: int) -> None:
        """Sends a signal, such as SIGSTOP."""
        os.kill(self.pid, number)


@contextmanager
def served(name: str, command: list[str], folder: Path) -> Iterator[GuestServer]:
    """A server that runs while the block is open."""
    with RecordingProxy() as proxy:
        server = GuestServer(name, command, proxy, folder / f"{name}.server.txt")
        server.start()
        try:
            yield server
        finally:
            server.kill()


class LlamaServer(NamedTuple):
    """llama.cpp's server, and the GGUF file of its model, which it serves as `demo`."""

    url: str
    model: Path


@contextmanager
def llama_server_runs(folder: Path, **sizes: int) -> Iterator[LlamaServer]:
    """The server without a proxy; skips the test where none is named."""
    command, model = llama_command(**sizes)
    with program(*command, log=folder / "llama.txt") as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.strip().isdigit(), (folder / "llama.txt").read_text()[-2000:]
        yield LlamaServer(f"http://127.0.0.1:{int(line)}", model)
