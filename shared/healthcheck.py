"""Asks the service in this container whether it is ready; for container health checks.

It runs every few seconds as a script in isolated mode, without site packages (`python -IS healthcheck.py
[PORT]`), which starts in about 15 ms. The port is the argument, else that of the admin endpoints. With
`RYZ_HTTP_CERT` a port that is given is asked by HTTPS, and our own certificate is not verified.
"""

import os
import socket
import sys

TIMEOUT_S = 2.0


def problem(port: int, host: str = "127.0.0.1", timeout_s: float = TIMEOUT_S, *, tls: bool = False) -> str:
    """Returns why the service is not ready, or an empty text if it is."""
    answer = b""
    try:
        with _connect(host, port, timeout_s, tls) as connection:
            connection.sendall(f"GET /ready HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
            while piece := connection.recv(65_536):
                answer += piece
    except OSError as error:
        return f"no answer on port {port}: {error}"
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b"\r\n")[0].decode(errors="replace")
    return "" if status.split()[1:2] == ["200"] else f"{status}: {body.decode(errors='replace')}"


def _connect(host: str, port: int, timeout_s: float, tls: bool) -> socket.socket:
    connection = socket.create_connection((host, port), timeout_s)
    if not tls:
        return connection
    import ssl  # noqa: PLC0415 (its import takes longer than all the rest)

    return ssl._create_unverified_context().wrap_socket(connection)


def main() -> int:
    """Prints the problem, if any; returns the exit status for the container engine."""
    given = sys.argv[1] if len(sys.argv) > 1 else ""
    tls = bool(given and os.environ.get("RYZ_HTTP_CERT"))
    found = problem(int(given or os.environ["RYZ_ADMIN_PORT"]), tls=tls)
    if found:
        print(found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
