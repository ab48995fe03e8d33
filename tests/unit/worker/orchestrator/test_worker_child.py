"""Exit codes of child processes from /proc: running, stopped, killed and not yet reaped ones."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from services.worker.orchestrator import rank_process_handle as child
from services.worker.orchestrator.rank_process_handle import (
    SpawnedRank,
    coming_exit_code,
    exit_text,
    runs,
    stat,
)
from tests.kits.waiting import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc/PID/stat")


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def state(pid: int) -> str:
    return (stat(pid) or [""])[0]


def test_one_that_runs_has_no_code(process: "subprocess.Popen[bytes]") -> None:
    assert coming_exit_code(process.pid) is None
    assert runs(process.pid)
    assert SpawnedRank(process).describe_end() == "still running"


def test_one_that_is_stopped_or_goes_on_is_not_dead(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGSTOP)
    wait_for(lambda: state(process.pid) == "T")
    assert SpawnedRank(process).describe_end() == "still running"
    process.send_signal(signal.SIGCONT)
    wait_for(lambda: state(process.pid) != "T")
    assert SpawnedRank(process).describe_end() == "still running"


def test_one_that_was_killed_while_it_was_stopped_is_dead(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGSTOP)
    wait_for(lambda: state(process.pid) == "T")
    process.send_signal(signal.SIGKILL)
    wait_for(lambda: coming_exit_code(process.pid) == -signal.SIGKILL)


@pytest.mark.parametrize(
    ("state", "status", "code"),
    [
        ("R", 9, -9),
        ("S", 0, None),
        ("Z", 128 + 11, -11),
        ("T", 9, None),
        ("t", 5, None),
        ("S", signal.SIGSTOP, None),
        ("R", signal.SIGTRAP << 8 | 0x7F, None),
    ],
)
def test_the_end_of_a_stopped_process_is_not_reported_by_what_stopped_it(
    monkeypatch: pytest.MonkeyPatch, state: str, status: int, code: int | None
) -> None:
    monkeypatch.setattr(child, "stat", lambda _: [state, str(int(status))])
    assert coming_exit_code(1) == code


@pytest.mark.parametrize(
    ("end", "text"),
    [(signal.SIGKILL, "killed by SIGKILL"), (signal.SIGTERM, "killed by SIGTERM")],
)
def test_a_signal_is_named_before_and_after_the_process_is_collected(
    process: "subprocess.Popen[bytes]", end: signal.Signals, text: str
) -> None:
    process.send_signal(end)
    wait_for(lambda: coming_exit_code(process.pid) == -end)
    wait_for(lambda: not runs(process.pid))
    assert coming_exit_code(process.pid) == -end
    assert SpawnedRank(process).describe_end() == text
    process.wait(30)
    assert coming_exit_code(process.pid) is None
    assert SpawnedRank(process).describe_end() == text


def test_an_exit_code_is_reported_unless_it_is_0() -> None:
    for code in (0, 3):
        with subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"]) as one:
            os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
            assert coming_exit_code(one.pid) == (code or None)
            assert SpawnedRank(one).describe_end() == f"exit code {code}"


def test_a_signal_without_a_name_is_reported_by_its_number() -> None:
    assert exit_text(-(signal.SIGRTMIN + 6)) == f"killed by signal {signal.SIGRTMIN + 6}"
