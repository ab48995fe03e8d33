"""Tests that run in forked processes: each has its result, and what ends a process is a failure."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CONFTEST = """
from tests.kits.parallel.forked_run import ForkedRun

def pytest_configure(config):
    config.addinivalue_line("markers", "alone: measures time")
    config.pluginmanager.register(ForkedRun(2), "forked-run")
"""
# a test that runs has a file of its name, which the others look for
WATCHED = """
import pathlib, time

def others_beside(name):
    path, others = pathlib.Path("running-" + name), set()
    path.touch()
    for _ in range(10):
        time.sleep(0.05)
        others |= {str(one) for one in pathlib.Path().glob("running-*") if one != path}
    path.rename("ran-" + name)
    return others
"""


def run_pytest(folder: Path, *modules: str) -> "subprocess.CompletedProcess[str]":
    """Runs modules of tests in two forked processes."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "tests").mkdir()
    for number, module in enumerate(modules):
        (folder / "tests" / f"test_{number}.py").write_text(module)
    options = ["-q", "-p", "no:cacheprovider", "--junitxml", "junit.xml"]
    # plugins of installed packages take seconds to import
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [sys.executable, "-P", "-m", "pytest", *options, "tests"],
        cwd=folder, env=environ, text=True, capture_output=True, timeout=60,
        check=False,
    )  # fmt: skip


def test_results_of_all_processes_are_reported(tmp_path: Path) -> None:
    module = (
        "import pytest",
        "def test_good(): pass",
        "def test_bad(): assert not 'shown'",
        "def test_skipped(): pytest.skip('why')",
    )
    done = run_pytest(tmp_path, "\n".join(module), "def test_other(): pass")
    assert "1 failed, 2 passed, 1 skipped" in done.stdout, done.stdout
    assert "AssertionError: assert not 'shown'" in done.stdout
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    report = (tmp_path / "junit.xml").read_text()
    assert 'failures="1" skipped="1" tests="4"' in report
    assert 'name="test_other"' in report


@pytest.mark.parametrize("more", ["pass", "subprocess.Popen(['sleep', '5'], close_fds=False)"])
def test_a_process_that_dies_is_a_failure_and_the_other_tests_run(tmp_path: Path, more: str) -> None:
    """Also if something that the test started holds the connection of the dead process open."""
    module = (
        "import os, subprocess",
        "def test_before(): pass",
        "def test_dies():",
        "    for name in os.listdir('/proc/self/fd'):",
        "        if os.path.exists(f'/proc/self/fd/{name}'):",
        "            os.set_inheritable(int(name), True)",
        f"    {more}",
        "    os.kill(os.getpid(), 9)",
        "def test_after(): pass",
    )
    done = run_pytest(tmp_path, "\n".join(module), "def test_other(): pass")
    assert "1 failed, 3 passed" in done.stdout, done.stdout
    assert "ended during this test: -9" in done.stdout
    assert done.returncode == pytest.ExitCode.TESTS_FAILED


def test_tests_that_measure_time_run_when_no_other_runs(tmp_path: Path) -> None:
    """They run after all others; a module may have tests of both kinds."""
    (tmp_path / "watched.py").write_text(WATCHED)
    begin = "import pathlib, pytest\nfrom watched import others_beside\n"
    mixed = (
        "@pytest.mark.alone",
        "def test_first(): assert not others_beside('first')",
        "def test_second(): others_beside('second')",
    )
    measuring = (
        "pytestmark = pytest.mark.alone",
        "def test_third():",
        "    assert not others_beside('third')",
        "    assert {'ran-second', 'ran-fourth'} <= {path.name for path in pathlib.Path().iterdir()}",
    )
    ordinary = "def test_fourth(): others_beside('fourth')\n"
    done = run_pytest(tmp_path, begin + "\n".join(mixed), begin + "\n".join(measuring), begin + ordinary)
    assert "4 passed" in done.stdout, done.stdout
    assert done.returncode == pytest.ExitCode.OK


def test_tests_that_were_not_run_are_reported(tmp_path: Path) -> None:
    """Here every process ends before it asks for tests."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:capture\n")
    done = run_pytest(tmp_path, "def test_other(): pass\n")
    assert "1 tests were not run, such as tests/test_0.py::test_other" in done.stdout, done.stdout
    assert done.returncode == pytest.ExitCode.INTERRUPTED
