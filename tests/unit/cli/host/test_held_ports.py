"""A stack holds the ports of its services, also while a service is down."""

import socket

import pytest
from starlette.applications import Starlette

from cli.console import CommandError
from cli.stack.host.ports import held_ports, pick_ports, require_free
from shared.errors import Unavailable
from shared.host.tcp_table import listens_here
from shared.web.admin_endpoints import admin_gate
from shared.web.http_server import http_server
from tests.kits.stranger import needs_root, next_line, stranger

TAKE = """
import itertools, sys
took = []
for host, reuse, share in itertools.product(("127.0.0.1", "0.0.0.0", "::"), (0, 1), (0, 1)):
    with socket.socket(socket.AF_INET6 if host == "::" else socket.AF_INET) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, share)
        try:
            one.bind((host, int(sys.argv[1])))
            took.append(f"{host}/{reuse}/{share}")
        except OSError:
            pass
print(*took)
"""


def taken_by_a_stranger(port: int) -> list[str]:
    with stranger(TAKE, str(port)) as other:
        said = next_line(other)
        assert other.wait(10) == 0
    return said.split()


@needs_root
@pytest.mark.parametrize("ended_before", [False, True], ids=["fresh", "connections ended a moment ago"])
async def test_a_stranger_cannot_take_the_port_of_a_service_that_is_down(ended_before: bool) -> None:
    (port,) = pick_ports(1)
    if ended_before:
        _leave_an_ended_connection(port, held=False)
    assert taken_by_a_stranger(port) != [], "who holds no port has it taken"
    with held_ports([("127.0.0.1", port)]):
        assert taken_by_a_stranger(port) == [], "before the start"
        async with http_server(Starlette(), "127.0.0.1", port, admin_gate(), held=True):
            assert taken_by_a_stranger(port) == [], "while it runs"
        _leave_an_ended_connection(port, held=True)
        assert taken_by_a_stranger(port) == [], "while it is down"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        async with http_server(Starlette(), "127.0.0.1", port, admin_gate(), held=True) as again:
            assert again == port
    with held_ports([("127.0.0.1", port)]):  # the next stack, started right after this one
        assert taken_by_a_stranger(port) == []


async def test_two_servers_of_one_user_do_not_share_a_held_port() -> None:
    (port,) = pick_ports(1)
    with held_ports([("127.0.0.1", port)]):
        assert not listens_here("127.0.0.1", port)
        async with http_server(Starlette(), "127.0.0.1", port, admin_gate(), held=True):
            for host in ("127.0.0.1", "0.0.0.0"):
                assert listens_here(host, port)
                with pytest.raises(Unavailable, match="Address already in use"):
                    async with http_server(Starlette(), host, port, admin_gate(), held=True):
                        pass


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1"])
def test_a_second_stack_of_one_user_is_refused_a_held_port(host: str) -> None:
    (port,) = pick_ports(1)
    with held_ports([(host, port)]):
        with pytest.raises(CommandError, match=f"Port {port} on {host} is taken"):
            require_free(host, port, "--port")
        with pytest.raises(CommandError, match="was taken in this moment"), held_ports([(host, port)]):
            pass
    require_free(host, port, "--port")


def _leave_an_ended_connection(port: int, *, held: bool) -> None:
    """Closes a connection on the server's side first, so that the kernel keeps that end for a minute."""
    with (
        socket.create_server(("127.0.0.1", port), reuse_port=held) as server,
        socket.create_connection(("127.0.0.1", port)) as client,
    ):
        server.accept()[0].close()
        assert client.recv(1) == b""
