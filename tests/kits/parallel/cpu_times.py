"""A pytest plugin that tells the CPU time of each test, with that of the processes it started.

`pytest -p tests.kits.parallel.cpu_times --cpu-times FILE` appends one line for each phase of a test:
milliseconds of this process, milliseconds of processes below it, the phase, the test. Processes that a test
hands on to another parent are not counted. On Linux only, and for one process of tests.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

_MS_PER_TICK = 1000 / os.sysconf("SC_CLK_TCK")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option for the file."""
    parser.addoption("--cpu-times", default="", help="append the CPU times of tests to this file")


def pytest_configure(config: pytest.Config) -> None:
    """Measure if a file is given."""
    if path := config.getoption("--cpu-times"):
        config.pluginmanager.register(_CpuTimes(Path(path)), "cpu-times")


class _CpuTimes:
    """Writes the CPU time of each phase to a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        """Measure the fixtures that a test is the first to need."""
        yield from self._measured("setup", item)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Measure the test."""
        yield from self._measured("call", item)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        """Measure the end of fixtures."""
        yield from self._measured("teardown", item)

    def _measured(self, phase: str, item: pytest.Item) -> Iterator[None]:
        own_ms, below_ms = cpu_ms()
        try:
            yield
        finally:
            now_own_ms, now_below_ms = cpu_ms()
            line = f"{now_own_ms - own_ms:8.0f} {now_below_ms - below_ms:8.0f} {phase:8} {item.nodeid}\n"
            with self._file.open("a") as file:
                file.write(line)


def cpu_ms() -> tuple[float, float]:
    """CPU time in milliseconds: of this process, and of all processes below it, ended ones included."""
    own_ms, below_ms = _ticks_ms(os.getpid())
    waiting = _children(os.getpid())
    while waiting:
        pid = waiting.pop()
        with suppress(FileNotFoundError, ProcessLookupError):
            below_ms += sum(_ticks_ms(pid))
            waiting.extend(_children(pid))
    return own_ms, below_ms


def _ticks_ms(pid: int) -> tuple[float, float]:
    """Milliseconds of a process, and of its children that it has waited for."""
    # after the name of the program, which may have blanks and brackets: state, parent, ... ticks at 11 to 14
    fields = _text_of(f"/proc/{pid}/stat").rpartition(")")[2].split()
    user, system, ended_user, ended_system = (int(text) for text in fields[11:15])
    return (user + system) * _MS_PER_TICK, (ended_user + ended_system) * _MS_PER_TICK


def _children(pid: int) -> list[int]:
    children: list[int] = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with suppress(FileNotFoundError, ProcessLookupError):
            children.extend(int(child) for child in _text_of(f"/proc/{pid}/task/{task}/children").split())
    return children


def _text_of(path: str) -> str:
    # tests replace `Path.read_text`
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
