"""Start and stop of a stack: what it survives, and that it leaves no process or file behind."""

import os
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import unquote, urlsplit

import psutil
import pytest

from cli.stack.state import StateDir
from tests.kits.e2e.stack import Stack, ryz
from tests.kits.waiting import PATIENCE_S, wait_for

NULL = ("--engine", "null", "--groups", "1")
# a whole GGUF file of one key, `general.architecture`
OTHER_ARCHITECTURE = b"GGUF" + struct.pack(
    "<IQQQ20sIQ5s", 3, 0, 1, 20, b"general.architecture", 8, 5, b"mamba"
)
Start = Callable[..., Stack]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts stacks and stops them even if the test fails."""
    with ExitStack() as stacks:
        yield lambda folder, *options: stacks.enter_context(Stack(folder, *options)).await_ready()


def shared_memory() -> set[str]:
    """What is in shared memory, without the KV blocks of stacks, which other tests run beside this one."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("ryz-kv-")}


def listening(url: str) -> bool:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(unquote(parts.path)) == 0
    with socket.socket() as probe:
        return probe.connect_ex((parts.hostname or "", parts.port or 0)) == 0


def assert_only_logs(folder: Path) -> None:
    kept = {"admin.key", "jetstream"}  # of stacks that were ready
    assert {path.name for path in (folder / ".ryz").iterdir()} - kept == {"logs", ".ryz-state"}
    assert all(".log" in path.suffixes for path in (folder / ".ryz" / "logs").iterdir())  # also x.log.1


def test_ctrl_c_leaves_nothing(tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    before = shared_memory()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(PATIENCE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        stack = start(tmp_path, "--groups", "1", "--routers", "2")
        assert systemd.recv(100) == b"READY=1"
    urls = [stack.state.url, stack.state.nats_url, stack.state.redis_url, stack.state.kv_redis_url]
    assert all(listening(url) for url in urls)
    # broker, two stores, five services, two processes beside the leader, two ranks; three processes fork
    assert len(stack.family) == 15
    mapped = {Path(one.path) for process in stack.family for one in process.memory_maps()}
    (kv_pool,) = {path.parent for path in mapped if path.match("g0.*.kv")}
    assert len(list(kv_pool.glob("g0.*.kv"))) == 2, "each rank has a ring in the memory of the host"
    stack.interrupt()
    assert stack.process.wait(timeout=10) == 0
    assert stack.leftovers() == []
    assert not any(listening(url) for url in urls)
    assert shared_memory() <= before
    assert not kv_pool.exists()
    assert_only_logs(tmp_path)
    assert "All services have ended." in stack.output.read_text()


def test_services_that_die_come_back_and_nothing_outlives_a_killed_supervisor(
    tmp_path: Path, start: Start
) -> None:
    stack = start(tmp_path, *NULL)
    kill_services(stack, tmp_path)
    stack.remember()
    stack.process.kill()
    stack.process.wait(timeout=5)
    wait_for(lambda: not stack.leftovers(), "the children ended")
    assert stack.state_dir.read() is None
    detach_and_end(tmp_path)  # in the folder that the killed one left


def kill_services(stack: Stack, folder: Path) -> None:
    """Kills three services; each is started again, and the stack answers."""
    for name in ("worker-g0", "gateway", "nats"):
        old = stack.pid_of(name)
        os.kill(old, signal.SIGKILL)
        wait_for(lambda name=name, old=old: stack.pid_of(name) not in {0, old}, f"{name} is back")  # type: ignore[misc]
    wait_for(lambda: all(one.ready for one in stack.state.services), "all ready again")

    def answers() -> bool:
        return ryz("chat", "--once", "hello", "--max-tokens", "4", cwd=folder).returncode == 0

    wait_for(answers, "an answer after the restarts")
    assert [one.restarts for one in stack.state.services if one.name == "gateway"] == [1]
    assert "worker-g0 died (killed by SIGKILL)" in stack.output.read_text()


def detach_and_end(folder: Path) -> None:
    """`ryz up --detach`, again while it is up, and `ryz down`."""
    first = ryz("up", "--detach", "--port", "0", *NULL, cwd=folder)
    assert first.returncode == 0, first.stderr + first.stdout
    state = StateDir(folder / ".ryz").read()
    assert state is not None
    url = state.url
    assert f"curl -N {url}/v1/chat/completions" in first.stdout
    again = ryz("up", cwd=folder)
    assert again.returncode == 1
    assert f"A stack is up already: {url}" in again.stderr
    family = psutil.Process(state.pid).children(recursive=True)
    assert listening(url)
    os.kill(state.pid, signal.SIGSTOP)  # as Ctrl-Z does in the foreground
    ended = ryz("down", cwd=folder)
    assert ended.returncode == 0, ended.stderr
    assert url in ended.stdout
    assert not any(one.is_running() for one in family)
    assert_only_logs(folder)
    nothing = ryz("down", cwd=folder)
    assert nothing.returncode == 1
    assert "No stack is up" in nothing.stderr


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        refused = ryz("up", *NULL, "--port", str(port), cwd=tmp_path)
    assert refused.returncode == 1
    assert f"Port {port} on 127.0.0.1 is taken" in refused.stderr
    assert f"--port {port + 1}" in refused.stderr


@pytest.mark.parametrize("detach", [[], ["--detach"]])
def test_a_wrong_setting_ends_the_start(tmp_path: Path, detach: list[str]) -> None:
    refused = ryz("up", "--port", "0", *NULL, *detach, cwd=tmp_path, env={"RYZ_ROUTER_THRESHOLD": "many"})
    assert refused.returncode == 1
    assert "RYZ_ROUTER_THRESHOLD='many'" in refused.stderr
    assert_only_logs(tmp_path)


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    missing = ryz("up", "--port", "0", "--model", str(tmp_path / "nothing"), cwd=tmp_path)
    assert missing.returncode == 2
    assert "nothing" in missing.stderr
    assert "Give a path" in missing.stderr


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"GGUF\3\0\0\0" + b"\xff" * 16, "is no complete GGUF file"),
        (b"PK" * 50, "is no GGUF file"),
        (OTHER_ARCHITECTURE, "architecture 'mamba' is not supported"),
    ],
)
def test_a_gguf_file_that_cannot_be_served_is_named(tmp_path: Path, data: bytes, named: str) -> None:
    (tmp_path / "m.gguf").write_bytes(data)
    refused = ryz("up", "--port", "0", "--model", "m.gguf", cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.startswith("This model cannot be served: ")
    assert named in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
