"""Programs that are forked do what those with an interpreter of their own do."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.kits.programs.launch import (
    Program,
    ProgramServer,
    async_program,
    is_forked,
    run_program,
    start_program,
)
from tests.kits.programs.messages import ADDRESS
from tests.kits.waiting import PATIENCE_S, wait_for

TOOL = "json.tool"  # reads JSON from stdin and writes it to stdout


@pytest.fixture(params=["forked", "executed"])
def env(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Variables of a program."""
    monkeypatch.setenv(ADDRESS, "")  # that of a whole run comes back afterwards
    monkeypatch.delenv(ADDRESS)
    if request.param == "executed":
        yield dict(os.environ)
        return
    server = ProgramServer([TOOL])
    yield dict(os.environ)
    server.end()


def blocked(env: dict[str, str], tmp_path: Path) -> tuple[Program, int]:
    """A program that waits for its input, and the end that keeps it waiting."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stdin, (tmp_path / "out").open("wb") as out:
        return start_program(TOOL, env=env, stdin=stdin, stdout=out, stderr=out), writing


def has_ended(pid: int) -> bool:
    """Whether a process has ended; its new parent may be late to wait for it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_outputs_and_exit_codes(env: dict[str, str], tmp_path: Path) -> None:
    good = run_program(TOOL, "--compact", env=env, stdin='{"a" : [1, 2]}', timeout_s=PATIENCE_S)
    assert (good.returncode, good.stdout, good.stderr) == (0, '{"a":[1,2]}\n', "")
    bad = run_program(TOOL, env=env, stdin="{", timeout_s=PATIENCE_S)
    assert (bad.returncode, bad.stdout) == (1, "")
    assert "Expecting property name" in bad.stderr
    (tmp_path / "here.json").write_text("[3]")
    here = run_program(TOOL, "--compact", "here.json", env=env, folder=tmp_path, timeout_s=PATIENCE_S)
    assert json.loads(here.stdout) == [3]
    wrong = run_program(TOOL, "--nonsense", env=env, timeout_s=PATIENCE_S)
    assert wrong.returncode == 2
    assert "--nonsense" in wrong.stderr


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_it_and_its_command_is_shown(
    env: dict[str, str], tmp_path: Path, signum: signal.Signals
) -> None:
    program, writing = blocked(env, tmp_path)
    wait_for(lambda: TOOL in " ".join(psutil.Process(program.pid).cmdline()), "its command is shown")
    assert program.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        program.wait(0.01)
    program.send_signal(signum)
    assert program.wait(PATIENCE_S) == program.returncode == program.poll() == -signum
    program.send_signal(signum)  # nothing has its process id now
    os.close(writing)


async def test_stderr_is_read_while_it_runs(env: dict[str, str]) -> None:
    async with async_program(TOOL, "/no/such/file", env=env) as program:
        _, said = await program.communicate()
        assert b"/no/such/file" in said
        assert program.returncode == await program.wait() == 2


def test_one_whose_test_forgets_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ADDRESS, "")
    server = ProgramServer([TOOL])
    program, writing = blocked(dict(os.environ), tmp_path)
    pid = program.pid
    del program
    wait_for(lambda: not psutil.pid_exists(pid), "it ends")
    os.close(writing)
    program, writing = blocked(dict(os.environ), tmp_path)
    pid = program.pid
    server.end()
    wait_for(lambda: has_ended(pid), "too")
    os.close(writing)


def test_variables_for_interpreters_need_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ADDRESS, "/a/socket")
    assert is_forked(dict(os.environ))
    assert is_forked({**os.environ, "RYZ_GROUP": "g9"})
    assert not is_forked({**os.environ, "PYTHONHASHSEED": "1"})
    assert not is_forked({**os.environ, "RYZ_COMPILED": "off"})
    monkeypatch.delenv(ADDRESS)
    assert not is_forked(dict(os.environ))
