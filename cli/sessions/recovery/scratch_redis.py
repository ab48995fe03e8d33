"""A Redis process for one look into a copy of a log: on a Unix socket of this user, without other users."""

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import redis

from cli.console import fail
from cli.stack.servers.redis_server import find_redis

_POLL_S = 0.05
_STOP_S = 30.0


@contextmanager
def scratch_redis(directory: Path) -> Iterator[redis.Redis]:
    """Runs a Redis on the log in `directory`; gives a connection when it has read it, and ends it afterwards.

    Raises:
        CommandError: It cannot read the log.
    """
    with tempfile.TemporaryDirectory(prefix="ryz-") as place:
        socket, log_file = Path(place) / "redis.sock", directory / "scratch.log"
        options = {
            "--port": "0", "--unixsocket": str(socket), "--unixsocketperm": "700", "--dir": str(directory),
            "--appendonly": "yes", "--save": "", "--auto-aof-rewrite-percentage": "0",
        }  # fmt: skip
        command = [find_redis(), *(part for pair in options.items() for part in pair)]
        with log_file.open("wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            with redis.Redis(unix_socket_path=str(socket)) as client:
                _await_loaded(process, client, log_file)
                yield client
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
            process.kill()
            process.wait()


def rewrite_log(client: redis.Redis) -> None:
    """Replaces the log by one that holds just what this Redis has in memory."""
    before = int(client.info("persistence")["aof_rewrites"])
    client.bgrewriteaof()
    while True:
        state = client.info("persistence")
        if int(state["aof_rewrites"]) > before and not state["aof_rewrite_in_progress"]:
            break
        time.sleep(_POLL_S)
    if state["aof_last_bgrewrite_status"] != "ok":
        fail("The new log could not be written; is there room on the disk? Nothing was changed.")


def _await_loaded(process: "subprocess.Popen[bytes]", client: redis.Redis, log_file: Path) -> None:
    while True:
        if process.poll() is not None:
            fail(f"Redis cannot read the log; nothing was changed. It said:\n{log_file.read_text()[-2000:]}")
        try:
            client.ping()
            return
        except redis.exceptions.ConnectionError:  # also while it loads
            time.sleep(_POLL_S)
