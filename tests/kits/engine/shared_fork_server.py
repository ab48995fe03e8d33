"""One fork server for the engines of a test process, so that torch is loaded once and not for each engine.

Every start of a fork server takes more than two seconds of CPU time. Tests that are about fork servers have
servers of their own: they override the fixture `shared_fork_server` of `tests/integration/conftest.py`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from services.worker.orchestrator import fork_server_client, process_group_manager
from services.worker.orchestrator.fork_server_client import ForkServerClient

_PER_TEST = "PYTEST_CURRENT_TEST"
_servers: dict[tuple[frozenset[tuple[str, str]], tuple[str, ...]], "_SharedForkServer"] = {}


class _SharedForkServer(ForkServerClient):
    """A fork server that goes on when an engine ends it; it ends with the test process."""

    def __init__(self, environment: dict[str, str], command: Sequence[str]) -> None:
        super().__init__(environment, command)
        self.end_at_last = self.end_server
        self.end_server = _do_nothing  # type: ignore[assignment]


def _do_nothing() -> None:
    """What an engine's end does to a server that others use."""


def end_shared_fork_servers() -> None:
    """Ends all of them; the next engine starts another."""
    while _servers:
        _servers.popitem()[1].end_at_last()


def shared_fork_server(
    environment: dict[str, str], command: Sequence[str] = fork_server_client.COMMAND
) -> ForkServerClient:
    """The running fork server with that environment and command, started if there is none."""
    environment = {name: value for name, value in environment.items() if name != _PER_TEST}
    key = frozenset(environment.items()), tuple(command)
    if key in _servers:
        _servers[key].read_reports()
    if key not in _servers or _servers[key].gone:
        _servers[key] = _SharedForkServer(environment, command)
    return _servers[key]


@contextmanager
def sharing(command: Sequence[str] = fork_server_client.COMMAND) -> Iterator[None]:
    """Lets all engines take their ranks from shared fork servers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            process_group_manager, "ForkServerClient", lambda given: shared_fork_server(given, command)
        )
        yield
