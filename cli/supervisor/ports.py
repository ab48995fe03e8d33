"""Free TCP ports, and a clear word when the wanted one is taken."""

import socket
from contextlib import ExitStack

from cli.console import fail


def pick_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """That many different free ports. They are free now; whoever wants one should take it soon."""
    with ExitStack() as held:
        sockets = [
            held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) for _ in range(count)
        ]
        for one in sockets:
            one.bind((host, 0))
        return [int(one.getsockname()[1]) for one in sockets]


def require_free(host: str, port: int, option: str) -> None:
    """Fails when somebody listens on that port, naming the option that chooses another."""
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
                f"`{option} {port + 1}`, or let one be found with `{option} 0`."
            )


def _owner(port: int) -> str:
    import psutil  # noqa: PLC0415 (only to explain a failure)

    try:
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.pid
            if listens and getattr(connection.laddr, "port", None) == port:
                return f" by {psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except psutil.Error:  # another user's processes may not be looked at
        return ""
    return ""
