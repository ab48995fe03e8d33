"""Runs Python code as another user of the machine. Needs root to switch to that user."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

USER_ID = 48_213  # a uid without processes or groups
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")


@contextmanager
def stranger(code: str, *args: str) -> Iterator["subprocess.Popen[str]"]:
    """Runs `code` as the other user while the context is open; its standard output is a pipe."""
    # only root may be able to read the interpreter's files, so imports come before the change of user
    becomes = f"import os, socket, threading; os.setgroups([]); os.setgid({USER_ID}); os.setuid({USER_ID})\n"
    command = [sys.executable, "-I", "-S", "-u", "-c", becomes + code, *args]
    with subprocess.Popen(command, cwd="/", env={}, text=True, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


# Argument: the port. Prints a line when it listens, and a line with the received bytes for each connection.
FALSE_BROKER = """
import sys, threading
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", int(sys.argv[1])))
listener.listen(64)
print("listens")
INFO = b'INFO {"server_id":"X","version":"2.10.20","proto":1,"host":"127.0.0.1","port":1,"headers":true,' \\
       b'"auth_required":true,"max_payload":1048576,"client_id":7,"connect_urls":["127.0.0.1:9"]}\\r\\n'
def serve(one):
    said = b""
    try:
        one.sendall(INFO)
        while data := one.recv(65536):
            said += data
            if b"PING" in said:
                one.sendall(b"PONG\\r\\n")
                break
    except OSError as error:
        pass
    print(repr(said))
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


def next_line(process: "subprocess.Popen[str]") -> str:
    """The next line that the process prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()
