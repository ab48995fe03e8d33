"""Services that are forked from processes with their imports, in a real stack."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cli.models.commands import users_of
from tests.kits.e2e.stack import Stack, ryz
from tests.kits.waiting import wait_for

SERVICES = ("kvstate", "router", "worker-g0", "worker-g1", "gateway")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("forked")
    with Stack(folder, "--tensor-parallel", "1", "--groups", "2", forked=False) as stack:
        yield stack.await_ready()
        assert stack.end() == 0
        assert stack.leftovers() == []


def forks(stack: Stack) -> dict[str, psutil.Process]:
    """The fork servers by what they import."""
    servers = [one for one in psutil.Process(stack.process.pid).children() if one.name() == "ryz-forks"]
    return {"worker" if "worker" in " ".join(one.cmdline()) else "control": one for one in servers}


def kill(stack: Stack, name: str) -> psutil.Process:
    """Kill a service and return its next process, once it is ready."""
    before = stack.pid_of(name)
    os.kill(before, signal.SIGKILL)

    def is_back() -> bool:
        service = next(one for one in stack.state.services if one.name == name)
        return service.ready and service.pid != before

    wait_for(is_back, f"{name} is ready again")
    return psutil.Process(stack.pid_of(name))


def zombies(stack: Stack) -> list[psutil.Process]:
    family = psutil.Process(stack.process.pid).children(recursive=True)
    return [one for one in family if one.status() == psutil.STATUS_ZOMBIE]


def test_each_service_is_a_child_of_the_supervisor_under_its_own_name(stack: Stack) -> None:
    for name in SERVICES:
        process = psutil.Process(stack.pid_of(name))
        assert process.ppid() == stack.process.pid
        assert process.name() == f"ryz-{name}"
        assert " ".join(process.cmdline()).strip().endswith(f"-P -m services.{name.partition('-')[0]}")
        assert os.getpgid(process.pid) == process.pid
    assert set(forks(stack)) == {"control", "worker"}


def test_a_killed_service_is_forked_again_and_leaves_no_zombie(stack: Stack) -> None:
    for name in ("gateway", "worker-g0"):
        assert kill(stack, name).name() == f"ryz-{name}"
    # the ranks of the killed leader have lost their parent
    wait_for(lambda: zombies(stack) == [], "all that ended is collected")
    assert len(stack.status()["groups"]) == 2


def test_what_a_service_writes_is_in_its_own_log(stack: Stack) -> None:
    logs = stack.state_dir.path / "logs"
    for name in SERVICES:
        lines = (logs / f"{name}.log").read_text().splitlines()
        assert {json.loads(line)["service"] for line in lines} == {name.partition("-")[0]}
    for name in forks(stack):
        assert (logs / f"forks-{name}.log").read_text() == ""


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_services_start_without_their_fork_server(stack: Stack, signum: signal.Signals) -> None:
    """A killed one and one that stands still; the second case takes the other server."""
    server, name = ("control", "router") if signum == signal.SIGKILL else ("worker", "worker-g1")
    fork_server = forks(stack)[server]
    fork_server.send_signal(signum)
    process = kill(stack, name)
    assert "services." in " ".join(process.cmdline())
    assert process.name() != f"ryz-{name}"
    wait_for(lambda: not fork_server.is_running(), "the fork server is gone")
    wait_for(lambda: f"({server}) is gone" in stack.output.read_text(), "a note says so")


def test_the_death_of_the_supervisor_ends_all(tmp_path: Path) -> None:
    with Stack(tmp_path, "--tensor-parallel", "1", "--groups", "1", forked=False) as stack:
        stack.await_ready()
        assert set(forks(stack).values()) <= set(stack.family)
        stack.process.kill()
        wait_for(lambda: stack.leftovers() == [], "all services have ended")


def test_a_model_that_is_served_is_seen_to_be_in_use(stack: Stack) -> None:
    served = Path(psutil.Process(stack.pid_of("worker-g0")).environ()["RYZ_MODEL"])
    assert {stack.pid_of("worker-g0"), stack.pid_of("worker-g1")} <= set(users_of(served))
    listed = ryz("models", "list", "--json", "--state-dir", str(stack.state_dir.path), cwd=stack.folder)
    groups = {one["path"]: one["groups"] for one in json.loads(listed.stdout)["models"] if one["groups"]}
    assert groups == {str(served): 2}
