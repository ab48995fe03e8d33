"""`ryz up` in a folder that every user may write to never runs files that other users put there."""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.kits.e2e.stack import Stack, ryz
from tests.kits.waiting import wait_for

# To stay unnoticed, the planted package adds the real package's folder to its `__path__`.
PLANTED = """
import os, sys
with open(os.path.join({folder!r}, "ran"), "a") as file:
    file.write(" ".join(sys.orig_argv) + chr(10))
for path in sys.path:
    if os.path.isdir(os.path.join(path, __name__)) and os.path.join(path, __name__) not in __path__:
        __path__.append(os.path.join(path, __name__))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ryz-open-") as name:
        path = Path(name)
        path.chmod(0o1777)
        for package in ("services", "shared", "torch"):
            (path / package).mkdir()
            (path / package / "__init__.py").write_text(PLANTED.format(folder=name))
        yield path


@pytest.mark.parametrize("rank_start", ["fork", "spawn"])
def test_packages_in_the_folder_are_not_run(folder: Path, rank_start: str) -> None:
    options = ("--groups", "1", "--tensor-parallel", "1")
    with Stack(folder, *options, env={"RYZ_RANK_START": rank_start}) as stack:
        stack.await_ready()
        worker = stack.pid_of("worker-g0")
        ranks = [one for one in stack.family if one.ppid() == worker]
        assert ranks, "the fork server, or a rank with an interpreter of its own"
        assert {one.environ().get("PYTHONSAFEPATH") for one in (*ranks, psutil.Process(worker))} == {"1"}
        assert all(" -P " in " ".join(one.cmdline()) for one in stack.family if one.name() == "ryz-forks")
        if rank_start == "fork":
            os.kill(worker, signal.SIGKILL)
            wait_for(lambda: stack.pid_of("worker-g0") not in {0, worker}, "the worker is started again")
            wait_for(lambda: all(one.ready for one in stack.state.services), "it is ready again")
        assert stack.end() == 0
    ran = folder / "ran"
    assert not ran.exists(), ran.read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make another user's link")
def test_a_strangers_link_leads_no_command_to_the_operators_files(folder: Path) -> None:
    project = folder / "project"
    (project / "run").mkdir(parents=True)
    (project / "run" / "results.txt").write_text("data")
    for path in (project, project / "run"):
        path.chmod(0o755)
    (folder / ".ryz").symlink_to(project)
    os.chown(folder / ".ryz", 48_213, 48_213, follow_symlinks=False)
    for command in (["up", "--engine", "null", "--port", "0", "--detach"], ["down"], ["keys", "list"]):
        done = ryz(*command, cwd=folder)
        assert done.returncode != 0
        assert "is a link that another user made" in done.stderr
    assert sorted(path.name for path in project.rglob("*")) == ["results.txt", "run"]
    assert {path.stat().st_mode & 0o777 for path in (project, project / "run")} == {0o755}


def test_a_folder_of_the_operators_own_keeps_what_no_stack_made(folder: Path) -> None:
    mine = folder / "mine"
    (mine / "run").mkdir(parents=True)
    (mine / "run" / "results.txt").write_text("data")
    done = ryz("up", "--engine", "null", "--port", "0", "--detach", "--state-dir", "mine", cwd=folder)
    assert done.returncode != 0
    assert "run in it was not made by a stack; move it away" in done.stderr
    assert (mine / "run" / "results.txt").read_text() == "data"
    (mine / "run").rename(mine / "my-run")
    (mine / "notes.txt").write_text("notes")
    with Stack(folder, "--engine", "null", "--groups", "1", "--state-dir", "mine") as stack:
        stack.state_dir = type(stack.state_dir)(mine)
        stack.await_ready()
        assert stack.end() == 0
    kept = {"admin.key", "jetstream"}
    assert {path.name for path in mine.iterdir()} == {"logs", "my-run", "notes.txt", ".ryz-state"} | kept
