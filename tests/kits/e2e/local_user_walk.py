"""Finds what a local user can read and reach of processes. Root runs it as `python -I -S - JSON`.

It switches to the user `uid`, then tries pids, paths, Unix sockets and ports. It prints a JSON list of what
succeeded as `[kind, what]`. It uses only the standard library.
"""

import ctypes
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

PTRACE_ATTACH = 16
PING = b"PING\r\n"
PROC_SECRETS = ("environ", "maps", "mem", "auxv", "syscall", "stack", "io", "pagemap", "personality")
PROC_LINKS = ("cwd", "root", "exe")
Finding = tuple[str, str]


def worked(act: Callable[[], object]) -> bool:
    """Whether the action raised no `OSError`."""
    try:
        act()
    except OSError:
        return False
    return True


def read(path: str) -> bytes:
    """The first bytes of a file."""
    with open(path, "rb") as file:
        return file.read(65536)


def open_with(path: str, flags: int) -> None:
    """Opens and closes a file without reading or writing it."""
    os.close(os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC))


def files(paths: list[str]) -> Iterator[Finding]:
    """Files and directories that can be read, listed, written or added to."""
    for path in paths:
        if os.path.isdir(path):
            if worked(lambda path=path: os.listdir(path)):  # type: ignore[misc]
                yield "list", path
            if os.access(path, os.W_OK | os.X_OK):
                yield "add to", path
            continue
        if worked(lambda path=path: open_with(path, os.O_RDONLY)):  # type: ignore[misc]
            yield "read", path
        if worked(lambda path=path: open_with(path, os.O_WRONLY)):  # type: ignore[misc]
            yield "write", path


def processes(pids: list[int], harmless: bool) -> Iterator[Finding]:
    """Readable files in /proc, and permitted actions on processes.

    Args:
        pids: The processes.
        harmless: Skip actions that affect a process.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for pid in pids:
        for name in PROC_SECRETS:
            with suppress(OSError):
                if read(f"/proc/{pid}/{name}"):
                    yield "read", f"/proc/{pid}/{name}"
        for name in PROC_LINKS:
            if worked(lambda pid=pid, name=name: os.readlink(f"/proc/{pid}/{name}")):  # type: ignore[misc]
                yield "link", f"/proc/{pid}/{name}"
        for name in ("fd", "map_files"):
            if worked(lambda pid=pid, name=name: os.listdir(f"/proc/{pid}/{name}")):  # type: ignore[misc]
                yield "list", f"/proc/{pid}/{name}"
        with suppress(OSError):
            yield "command line", read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace")
        if harmless:
            continue
        if worked(lambda pid=pid: os.kill(pid, 0)):  # type: ignore[misc]
            yield "signal", str(pid)
        if worked(lambda pid=pid: os.sched_setaffinity(pid, {0})):  # type: ignore[misc]
            yield "bind to a core", str(pid)
        if libc.ptrace(PTRACE_ATTACH, pid, 0, 0) == 0:
            yield "trace", str(pid)


def unix_sockets(names: list[str]) -> Iterator[Finding]:
    """Sockets that accept a connection; a name that begins with @ is abstract."""
    for name in names:
        address = "\0" + name[1:] if name.startswith("@") else name
        for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
            with socket.socket(socket.AF_UNIX, kind) as probe:
                probe.settimeout(2)
                if probe.connect_ex(address) == 0:
                    yield "connect", name


def exchange(port: int, question: bytes) -> bytes:
    """Sends `question` to a port and returns what it answers until it pauses."""
    said = b""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as sock:
        sock.settimeout(0.7)
        sock.sendall(question)
        while part := sock.recv(65536):
            said += part
    return said


def ports(numbers: list[int]) -> Iterator[Finding]:
    """The answers of ports to HTTP, broker and Redis requests without credentials."""
    for port in numbers:
        for path in ("/live", "/ready", "/metrics", "/v1/models", "/v1/sessions", "/docs", "/status"):
            request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
            yield f"GET {path}", f"{port} {exchange(port, request.encode()).decode(errors='replace')}"
        for login in ("{}", '{"user":"gateway","pass":""}', '{"user":"sys"}'):
            wanted = f"CONNECT {login}\r\nSUB > 1\r\nPUB ryz.v1.cancel 0\r\n\r\nPING\r\n"
            yield "broker", f"{port} {exchange(port, wanted.encode()).decode(errors='replace')}"
        yield "redis", f"{port} {exchange(port, PING).decode(errors='replace')}"


def main() -> None:
    """Prints all findings."""
    given = json.loads(sys.argv[1])
    socket.getaddrinfo("127.0.0.1", 1)  # loads modules that the other user may not be able to read
    os.setgroups([])
    os.setgid(given["uid"])
    os.setuid(given["uid"])
    found = [
        *files(given["paths"]),
        *processes(given["pids"], given["harmless"]),
        *unix_sockets(given["sockets"]),
        *ports(given["ports"]),
    ]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
