"""Helper processes of a measurement: calls, refusals, deaths and cleanup."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.lib.child import ChildObject
from benchmarks.lib.measuring import BenchError
from tests.kits.waiting import wait_for

HELPER = "tests.kits.bench.child_calls:Helper"


@pytest.fixture
def child() -> Iterator[ChildObject]:
    helper = ChildObject(HELPER, {}, {"RYZ_BENCH_TEST": "seen"})
    helper.receive(30)
    yield helper
    helper.close()


def test_calls_are_answered_one_after_the_other(child: ChildObject) -> None:
    assert child.call("variable", "RYZ_BENCH_TEST") == "seen"
    with pytest.raises(BenchError, match=r"^it was refused$"):
        child.call("refuse")
    assert child.call("variable", "RYZ_BENCH_TEST") == "seen"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"refuse": "not here"}, "^not here$"), ({"broken": True}, "ZeroDivisionError: no luck")],
)
def test_what_cannot_be_made_says_why(arguments: dict[str, object], message: str) -> None:
    helper = ChildObject(HELPER, arguments)
    try:
        with pytest.raises(BenchError, match=message):
            helper.receive(30)
        with pytest.raises(BenchError, match="process of Helper ended: exit code 0"):
            helper.call("variable", "HOME")
    finally:
        helper.close()


def test_a_death_is_reported_with_its_exit_code(child: ChildObject) -> None:
    with pytest.raises(BenchError, match="process of Helper ended: exit code 3"):
        child.call("leave", 3)
    with pytest.raises(BenchError, match="ended: exit code 3"):
        child.call("variable", "HOME")


def test_silence_is_an_error_in_time(child: ChildObject) -> None:
    with pytest.raises(BenchError, match=r"did not answer within 0\.1 s"):
        child.call("sleep", 20, timeout_s=0.1)


def test_it_cannot_outlive_its_parent(tmp_path: Path) -> None:
    script = (
        "import os, time\n"
        "from benchmarks.lib.child import ChildObject\n"
        f"child = ChildObject({HELPER!r}, {{}})\n"
        "child.receive(30)\n"
        "print(child._process.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    wait_for(lambda: not _runs(pid), "the helper ends", 10)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state != "Z"  # a zombie: dead, but its exit code was not collected
