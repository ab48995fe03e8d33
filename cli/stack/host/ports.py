"""Finds free TCP ports, refuses ports that are taken, and keeps ports for services."""

import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NoReturn

from cli.console import called_as, fail

BACKLOG = 2048  # connections that may wait for a service


def pick_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return `count` different ports that are free now; another process may take one at any time."""
    with ExitStack() as held:
        sockets = [
            held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) for _ in range(count)
        ]
        for one in sockets:
            one.bind((host, 0))
        return [int(one.getsockname()[1]) for one in sockets]


def require_free(host: str, port: int, option: str, zero: str = "let one be found") -> None:
    """Fail when that port is taken, naming the option that chooses another; `zero` says what 0 does."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except PermissionError:
            fail(f"This user may not listen on port {port}. Choose one above 1023: `{option} {port + 8000}`.")
        except socket.gaierror:
            fail(f"There is no address {host!r} to listen on. Choose another with `--host`.")
        except OSError as error:
            fail(
                f"Port {port} on {host} is taken{_owner(port)} ({error.strerror}). Choose another with "
                f"`{option} {port + 1}`, or {zero} with `{option} 0`."
            )


@contextmanager
def held_ports(addresses: Iterable[tuple[str, int]]) -> Iterator[None]:
    """Keep ports for this user's services inside the block, also while one of them is down.

    Each has a socket that is bound and never listens: clients of a service that is down are refused at once,
    and the kernel lets only this user bind the port, with SO_REUSEPORT. Fails when one is taken.
    """
    with ExitStack() as stack:
        for host, port in addresses:
            stack.enter_context(_hold(host, port))
        yield


@contextmanager
def listening_port(host: str, port: int) -> Iterator[socket.socket]:
    """Listen at a port for a service that accepts from the socket; clients wait there while it is down.

    The socket is closed at the end of the block, if it has not been before. Fails when the port is taken.
    """
    listener = _bound(host, port)
    with listener:
        # Connections inherit it: without it, those that ended a moment ago would keep the port from the next
        # stack for a minute. Of two sockets that have it, only one may listen.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.listen(BACKLOG)
        except OSError as error:
            _fail_taken(host, port, error)
        yield listener


def _hold(host: str, port: int) -> socket.socket:
    held = _bound(host, port)
    # set only now: bound with it, a second supervisor of this user would get the same port
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return held


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:  # as the servers bind it
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            held.bind((host, port))
        except OSError:
            # connections that ended a moment ago may be all that has the port
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind((host, port))
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError as error:
        held.close()
        _fail_taken(host, port, error)
    return held


def _fail_taken(host: str, port: int, error: OSError) -> NoReturn:
    fail(f"Port {port} on {host} was taken in this moment{_owner(port)} ({error.strerror}). Try again.")


def _owner(port: int) -> str:
    import psutil  # noqa: PLC0415 (only to explain a failure)

    from cli.nearest_stack import stacks_elsewhere  # noqa: PLC0415
    from cli.stack.state import state_dir_words  # noqa: PLC0415

    for path, state in stacks_elsewhere():
        own_broker = state.nats_url if state.nats_urls else ""
        if any(url.endswith(f":{port}") for url in (state.url, own_broker)):
            down = f"{called_as()} down{state_dir_words(path)}"
            return f" by the stack that is up in {path}, which `{down}` ends"
    try:
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.pid
            if listens and getattr(connection.laddr, "port", None) == port:
                return f" by {psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except psutil.Error:  # another user's processes may not be looked at
        return ""
    return ""
