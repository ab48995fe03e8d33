"""Finds the user of the process at the other end of a connection, in the kernel's table (`/proc/net/tcp`).

Any user may take a free port of a loopback address, so a client that is about to send a password looks up the
user of the process that answers. The table has the sockets of this network namespace only.
"""

import asyncio
import ipaddress
import os
import socket
import sys
from pathlib import Path

_TABLES = ("tcp", "tcp6")
PROC_NET = Path("/proc/self/net")
_ESTABLISHED, _LISTENS = b"01", b"0A"
_READS = 3  # a socket that closes while the table is read may hide the next one

Endpoint = tuple[str, int]  # address and port


async def distrust(peer: Endpoint, own: Endpoint) -> str:
    """Returns why the other end of a connection is not trusted, or an empty text if it is.

    Processes of this user and of root are trusted. So is every peer that is not on a loopback address: it is
    on another machine, and not in the table. Call it when the other end has sent something: its socket has
    been accepted then, and has an owner.

    Args:
        peer: Address and port of the other end.
        own: Address and port of this end.
    """
    if not ipaddress.ip_address(peer[0].partition("%")[0]).is_loopback:
        return ""
    try:
        user_id = await asyncio.to_thread(accepted_by, peer, own)
    except OSError as error:
        return f"who listens on port {peer[1]} cannot be seen: {error}"
    if user_id is None:
        return f"the socket at port {peer[1]} has no process"
    if user_id not in {0, os.geteuid()}:
        return (
            f"a process of the user {user_id} listens on port {peer[1]}, and this is the user {os.geteuid()}"
        )
    return ""


def accepted_by(local: Endpoint, remote: Endpoint) -> int | None:
    """Returns the user of the process at the end `local` of a connection, or None if no process has it.

    Args:
        local: Address and port of that end.
        remote: Address and port of the other end.

    Raises:
        OSError: The tables cannot be read.
    """
    for _ in range(_READS):
        for table in _TABLES:
            wide = table == "tcp6"
            ends = [_spelled(local, wide=wide), _spelled(remote, wide=wide)]
            if "" in ends:
                continue
            path = PROC_NET / table
            if wide and not path.exists():  # a kernel without IPv6
                continue
            for line in path.read_bytes().splitlines():
                fields = line.split()
                if len(fields) > 9 and fields[1:3] == [one.encode() for one in ends]:
                    user, inode = int(fields[7]), int(fields[9])
                    # a socket that was not accepted, or was closed, is shown as root's without an inode
                    return user if inode and fields[3] == _ESTABLISHED else None
    return None


def listens_here(host: str, port: int) -> bool:
    """Returns whether a process of this user listens at that address or all addresses, and that port.

    Raises:
        OSError: The tables cannot be read, or the host has no address.
    """
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    address = socket.getaddrinfo(host, port, kind, socket.SOCK_STREAM)[0][4][0]
    everywhere = ipaddress.ip_address(str(address)).is_unspecified
    for table in _TABLES:
        wide = table == "tcp6"
        addresses = {_spelled((one, port), wide=wide) for one in (str(address), "::" if wide else "0.0.0.0")}
        path = PROC_NET / table
        if wide and not path.exists():
            continue
        for line in path.read_bytes().splitlines()[1:]:
            fields = line.split()
            if fields[3] != _LISTENS or int(fields[7]) != os.geteuid():
                continue
            endpoint = fields[1].decode()
            if endpoint in addresses or (everywhere and int(endpoint.rpartition(":")[2], 16) == port):
                return True
    return False


def _spelled(endpoint: Endpoint, *, wide: bool) -> str:
    """Returns an address as the tables write it, in words of 32 bits in the machine's order; empty: none."""
    address = ipaddress.ip_address(endpoint[0].partition("%")[0])
    packed = address.packed
    if wide and address.version == 4:
        packed = bytes(10) + b"\xff\xff" + packed
    elif not wide and address.version == 6:
        return ""
    words = [int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4)]
    return "".join(f"{word:08X}" for word in words) + f":{endpoint[1]:04X}"
