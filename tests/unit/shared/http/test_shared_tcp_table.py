"""Which user's process has the other end of a connection, according to the kernel's table."""

import os
import socket

import pytest

from shared.host.tcp_table import accepted_by, distrust


@pytest.mark.parametrize(
    ("host", "family", "listens_on"),
    [
        ("127.0.0.1", socket.AF_INET, "127.0.0.1"),
        ("::1", socket.AF_INET6, "::1"),
        ("127.0.0.1", socket.AF_INET6, "::"),  # a dual-stack socket, which is in the IPv6 table
    ],
)
async def test_an_end_belongs_to_who_accepted_it(host: str, family: int, listens_on: str) -> None:
    dual = listens_on == "::"
    with (
        socket.create_server(
            (listens_on, 0), family=socket.AddressFamily(family), dualstack_ipv6=dual
        ) as server,
        socket.create_connection((host, server.getsockname()[1])) as client,
    ):
        peer, own = client.getpeername()[:2], client.getsockname()[:2]
        assert accepted_by(peer, own) is None, "no process has accepted it yet"
        assert "has no process" in await distrust(peer, own)
        with server.accept()[0]:
            assert accepted_by(peer, own) == os.geteuid()
            assert await distrust(peer, own) == ""
        assert accepted_by(peer, own) is None, "its process has closed it"


async def test_another_machine_is_not_looked_for() -> None:
    assert await distrust(("192.0.2.1", 4222), ("192.0.2.7", 40000)) == ""
