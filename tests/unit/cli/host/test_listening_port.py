"""The supervisor listens for a service: connections wait while it is started again, and are then served."""

import os
import socket
import sys
from pathlib import Path

import pytest

from cli.console import CommandError
from cli.stack.host.ports import listening_port, pick_ports, require_free
from cli.stack.supervision.process import ServiceProcess, ServiceSpec
from shared.web.http_server import passed_socket
from tests.kits.e2e.stack import ROOT

SERVE_ONE = """
import os, sys
sys.path.insert(0, sys.argv[1])
from shared.web.http_server import passed_socket
with passed_socket() as listener:
    connection, _ = listener.accept()
    connection.sendall(str(os.getpid()).encode())
    connection.close()
assert passed_socket() is None and "LISTEN_FDS" not in os.environ
"""


async def never() -> bool:
    return False


async def test_connections_wait_for_the_next_process(tmp_path: Path) -> None:
    (port,) = pick_ports(1)
    with listening_port("127.0.0.1", port) as listener:
        command = [sys.executable, "-c", SERVE_ONE, str(ROOT)]
        service = ServiceProcess(ServiceSpec("one", command, never, 0, 1.0), tmp_path / "log", listener)
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", port), timeout=30) as waiting:
                await service.start()
                assert await service.wait() == 0, (tmp_path / "log").read_text()
                assert waiting.recv(100) == str(service.pid).encode()
        listener.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


def test_a_port_that_is_listened_on_is_taken() -> None:
    (port,) = pick_ports(1)
    with (
        listening_port("127.0.0.1", port),
        pytest.raises(CommandError, match="was taken in this moment"),
        listening_port("127.0.0.1", port),
    ):
        pass


def test_a_stack_starts_again_where_connections_have_just_ended() -> None:
    """The side that closes first keeps its end for a minute, in the state TIME-WAIT."""
    (port,) = pick_ports(1)
    with (
        listening_port("127.0.0.1", port) as listener,
        socket.create_connection(("127.0.0.1", port)) as client,
    ):
        accepted, _ = listener.accept()
        accepted.close()
        assert client.recv(1) == b""
    require_free("127.0.0.1", port, "--port")
    with listening_port("127.0.0.1", port):
        pass


@pytest.mark.parametrize("pid", ["1", "", "x"])
def test_a_socket_that_was_meant_for_another_process_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, pid: str
) -> None:
    monkeypatch.setenv("LISTEN_FDS", "1")
    monkeypatch.setenv("LISTEN_PID", pid)
    assert passed_socket() is None
    assert "LISTEN_FDS" not in os.environ
