"""Asks the service in this container whether it is ready; for container health checks.

Run as a script in isolated mode, without site packages (`python -IS healthcheck.py [PORT]`): it starts in
about 15 ms, and runs every few seconds. The port is the argument, else that of the admin endpoints.
"""

import os
import socket
import sys

TIMEOUT_S = 2.0


def problem(port: int, host: str = "127.0.0.1", timeout_s: float = TIMEOUT_S) -> str:
    """Why the service is not ready; empty when it is."""
    answer = b""
    try:
        with socket.create_connection((host, port), timeout_s) as connection:
            connection.sendall(f"GET /ready HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
            while piece := connection.recv(65_536):
                answer += piece
    except OSError as error:
        return f"no answer on port {port}: {error}"
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b"\r\n")[0].decode(errors="replace")
    return "" if status.split()[1:2] == ["200"] else f"{status}: {body.decode(errors='replace')}"


def main() -> int:
    """Prints what is wrong, if anything; the exit status for the container engine."""
    found = problem(int(sys.argv[1] if len(sys.argv) > 1 else os.environ["RYZ_ADMIN_PORT"]))
    if found:
        print(found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
