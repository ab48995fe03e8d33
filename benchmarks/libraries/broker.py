"""A broker with JetStream for a measurement, on a free port of this machine."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

START_S = 10.0


@contextlib.contextmanager
def broker() -> Iterator[str]:
    """Runs a broker inside the block and yields its URL."""
    paths = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", "")))
    binary = shutil.which("nats-server", path=paths)
    if binary is None:
        sys.exit("nats-server was found neither beside this Python nor on PATH")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="ryz-bench-") as folder:
        command = [binary, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", folder]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until = time.monotonic() + START_S
            while time.monotonic() < until:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.02)
            yield f"nats://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()
