"""What a forked process of tests does: run the tests that it is given and report each result."""

import io
import os
import traceback
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import pytest

from tests.kits.parallel.side_by_side import COMPUTING_NICENESS


class _Sender:
    """Sends what terminal and cache of the first process need to know."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(("report", data))


class _NoTerminal:
    """Stands in for the terminal's plugin, for plugins that ask for its writer."""

    def __init__(self, writer: Any) -> None:
        self._tw = writer


def run_tests(session: pytest.Session, connection: Connection, number: int) -> NoReturn:
    """Runs tests for as long as some are given, and ends the process."""
    leave = os._exit
    # slipcover's, which write what this process measured; forks made by tests must not do that
    os._exit = getattr(os._exit, "__wrapped__", os._exit)
    os.fork = getattr(os.fork, "__wrapped__", os.fork)
    status = 3
    try:
        _use_own_output(session.config)
        session.config.pluginmanager.register(_Sender(session.config, connection), "forked-sender")
        if number % 2:
            os.nice(COMPUTING_NICENESS)
        _run(session, connection)
        status = 0
    except (EOFError, ConnectionError, KeyboardInterrupt):
        status = 2
    except BaseException:
        traceback.print_exc()
    finally:
        leave(status)


def _run(session: pytest.Session, connection: Connection) -> None:
    def ask() -> list[int]:
        connection.send(("next", None))
        given: list[int] = connection.recv()
        return given

    hook = session.config.hook
    indices = ask()
    while indices:
        index = indices.pop(0)
        if not indices:
            indices = ask()
        item, following = session.items[index], session.items[indices[0]] if indices else None
        connection.send(("begin", index))
        try:
            hook.pytest_runtest_protocol(item=item, nextitem=following)
        except BaseException:
            hook.pytest_runtest_teardown(item=item, nextitem=None)
            raise
        connection.send(("end", index))


def _use_own_output(config: pytest.Config) -> None:
    """Part with the files that this process shares with the others: each captures what it writes itself."""
    plugins = config.pluginmanager
    capture: Any = plugins.get_plugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
    writer = type(config.get_terminal_writer())(io.StringIO())
    plugins.unregister(name="terminalreporter")
    plugins.register(_NoTerminal(writer), "terminalreporter")
