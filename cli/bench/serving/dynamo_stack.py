"""Dynamo with its mock engine, for the time of a measurement beside ours.

Dynamo serves a model under the path of its directory. Requests go over NATS, and its processes find each
other by files, so that it needs no etcd. Its mock engine computes nothing, as our null engine does.
"""

import os
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.lib.measuring import BenchError
from benchmarks.lib.stack import RunningStack
from benchmarks.peers.known import KnownPeer, python_of, require_installed
from cli.bench.own_stack import POLL_S, STOP_TIMEOUT_S
from cli.console import fail
from cli.stack.host.ports import pick_ports
from cli.stack.servers.broker import find_nats, nats_threads
from cli.stack.state import log_tail
from shared.host.cores_and_memory import usable_cores

START_TIMEOUT_S = 120.0
_SPEEDUP = 1e6  # of simulated steps
_DYNAMO = KnownPeer(
    name="dynamo",
    maker="",
    packages=("dynamo",),
    environment="dynamo",
    install="ai-dynamo==1.3.1",
    form="directory",
    types={},
)


def require_dynamo(environments: Path | None, model: Path | None) -> None:
    """Refuse a measurement without Dynamo, or without a directory that both sides can read."""
    if model is None or not (model / "tokenizer.json").is_file():
        fail(
            "--peer dynamo needs --model DIR, a Hugging Face directory: both sides use its tokenizer and "
            "chat template.",
            exit_code=2,
        )
    try:
        require_installed(_DYNAMO, environments)
    except BenchError as error:
        fail(f"{error}.", exit_code=2)


@contextmanager
def dynamo_stack(environments: Path | None, model: Path, workers: int) -> Iterator[RunningStack]:
    """Start Dynamo's frontend and its mock engine with a broker of their own, and end them with the block.

    Raises:
        CommandError: It did not come up; the text ends with what its processes wrote.
    """
    python, name = str(python_of(_DYNAMO, environments)), str(model.resolve())
    broker, port = pick_ports(2)
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="ryz-dynamo-") as folder, ExitStack() as running:
        path = Path(folder)
        variables = {
            "NATS_SERVER": f"nats://127.0.0.1:{broker}",
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_FILE_KV": str(path / "found"),
            "DYN_REQUEST_PLANE": "nats",
            "DYN_LOG": "error",
            "HF_HUB_OFFLINE": "1",
        }
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | variables
        environment |= nats_threads(os.environ, usable_cores())  # as ours has it
        log = path / "dynamo.log"
        commands = {
            "nats": [find_nats(), "-a", "127.0.0.1", "-p", str(broker), "-js", "-sd", str(path / "js")],
            "frontend": [python, "-P", "-m", "dynamo.frontend", "--http-host", "127.0.0.1",
                         "--http-port", str(port)],
            "mocker": [python, "-P", "-m", "dynamo.mocker", "--model-path", name,
                       "--speedup-ratio", str(_SPEEDUP), "--num-workers", str(workers)],
        }  # fmt: skip
        pids = {}
        with log.open("wb") as file:
            for service, command in commands.items():
                one = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment, cwd=folder
                )
                running.callback(_end, one)
                pids[service] = one.pid
        deadline = time.monotonic() + START_TIMEOUT_S
        while name not in _models(url):
            if time.monotonic() > deadline:
                fail(f"Dynamo was not ready within {START_TIMEOUT_S:g} s:\n{log_tail(log)}")
            time.sleep(POLL_S)
        yield RunningStack(url, name, pids)


def _models(url: str) -> str:
    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=1.0) as answer:
            return str(answer.read().decode())
    except (OSError, urllib.error.URLError):
        return ""


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
