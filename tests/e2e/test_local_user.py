"""Lists what a second user of the machine can read and reach of a running stack.

The test needs root to switch to that user. The stack has ranks, shared memory and a fork server.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from tests.kits.e2e.belongings import Belongings, belongings
from tests.kits.e2e.stack import ROOT, Stack

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user"),
]
STRANGER = 48_213  # a uid without processes or groups
KEY, SESSION, WORDS = "key-of-ada-5817", "walk-session-7731", "the heron stands in cold water"
WALK = ROOT / "tests" / "kits" / "e2e" / "local_user_walk.py"


@dataclass(slots=True)
class Scene:
    """A stack that has answered requests, in a folder that every user may enter."""

    stack: Stack
    folder: Path
    has: Belongings
    secrets: list[str]

    def walk(self, uid: int, *, harmless: bool = False) -> list[tuple[str, str]]:
        """The findings of `local_user_walk` for a user."""
        given = {
            "pids": self.has.pids, "paths": sorted(self.has.paths), "sockets": sorted(self.has.sockets),
            "ports": sorted(self.has.ports), "harmless": harmless, "uid": uid,
        }  # fmt: skip
        done = subprocess.run(
            [os.path.realpath(sys.executable), "-I", "-S", "-", json.dumps(given)],
            input=WALK.read_text(), text=True, capture_output=True, timeout=120, check=False,
            cwd="/", env={},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return [(kind, what) for kind, what in json.loads(done.stdout)]


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    """One group of two ranks with its state and temporary files in folders that other users may enter."""
    folder = Path(tempfile.mkdtemp(prefix="ryz-walk-"))
    temporary = folder / "tmp"
    temporary.mkdir()
    folder.chmod(0o755)
    temporary.chmod(0o1777)
    kept = folder / "kept"
    env = {"TMPDIR": str(temporary), "RYZ_API_KEYS": f"{KEY}:ada"}
    before = {name: set(os.listdir(name)) for name in ("/dev/shm", "/dev/mqueue") if os.path.isdir(name)}
    mask = os.umask(0o022)  # the usual umask: protection must not depend on a stricter one
    try:
        with Stack(folder, "--groups", "1", "--redis-dir", str(kept), env=env, calm=False) as stack:
            stack.await_ready()
            body = {"model": "demo", "max_tokens": 24, "messages": [{"role": "user", "content": WORDS}]}
            headers = {"X-Session-Id": SESSION, "Authorization": f"Bearer {KEY}"}
            url = f"{stack.state.url}/v1/chat/completions"
            for _ in range(2):
                assert httpx.post(url, json=body, headers=headers, timeout=60).status_code == 200
            family = [
                stack.process.pid,
                *(one.pid for one in psutil.Process(stack.process.pid).children(True)),
            ]
            has = belongings(family, folder)
            for name, names in before.items():  # paths that exist without being open count, too
                new = set(os.listdir(name)) - names
                has.paths |= {f"{name}/{one}" for one in new if any(str(pid) in one for pid in family)}
            state = stack.state
            urls = [*state.nats_urls.values(), state.redis_url, state.kv_redis_url]
            words = [url.partition("@")[0].rpartition(":")[2] for url in urls]
            yield Scene(stack, folder, has, [KEY, *words])
            assert stack.end() == 0
    finally:
        os.umask(mask)
        shutil.rmtree(folder, ignore_errors=True)


# What another user may read, and why it is harmless.
OPEN_DIRECTORIES = {"": "the test's own", "tmp": "stands for /tmp, which is open to all"}
OPEN_FILES = {"up.txt": "what the command printed, which the test put into a file"}


def test_the_walk_sees_what_is_there(scene: Scene) -> None:
    """Checks the walk itself: as root it finds what the other user must not find."""
    found = scene.walk(0, harmless=True)
    state = scene.stack.state_dir.path
    assert {("read", str(state / name)) for name in ("up.json", "redis.acl", "nats.conf")} <= set(found)
    assert ("connect", str(state / "run" / "redis.sock")) in found
    assert sum(kind == "read" and what.endswith("/environ") for kind, what in found) == len(scene.has.pids)
    assert {"nats-server"} <= set(scene.has.ports.values())
    assert len(scene.has.pids) >= 10  # supervisor, broker, two stores, four services, fork server, two ranks


def test_files_are_closed(scene: Scene) -> None:
    allowed = {str(scene.folder / name).rstrip("/") for name in (*OPEN_DIRECTORIES, *OPEN_FILES)}
    found = [
        (kind, what)
        for kind, what in scene.walk(STRANGER)
        if kind in {"read", "write", "list", "add to"} and not what.startswith("/proc/")
    ]
    assert [one for one in found if one[1] not in allowed] == []
    assert {what for kind, what in found if kind in {"write", "add to"}} <= {str(scene.folder / "tmp")}
    assert not any(word in (scene.folder / "up.txt").read_text() for word in scene.secrets)


def test_processes_are_closed_and_command_lines_tell_no_secret(scene: Scene) -> None:
    found = scene.walk(STRANGER)
    kinds = {"signal", "trace", "bind to a core", "link"}
    assert [one for one in found if one[0] in kinds or one[1].startswith("/proc/")] == []
    lines = [what for kind, what in found if kind == "command line"]
    assert len(lines) == len(scene.has.pids), "command lines are for all to read"
    leaked = [line for line in lines if any(word in line for word in (*scene.secrets, SESSION, WORDS))]
    assert leaked == []


def test_no_socket_takes_a_connection(scene: Scene) -> None:
    assert {str(scene.stack.state_dir.path / "run" / name) for name in ("redis.sock", "redis-kv.sock")} <= (
        scene.has.sockets
    )
    assert [one for one in scene.walk(STRANGER) if one[0] == "connect"] == []


def test_ports_are_on_loopback_and_say_nothing_to_a_stranger(scene: Scene) -> None:
    """The broker, the API and the services' admin routes have open ports; ranks and stores have none."""
    assert scene.has.other_hosts == set()
    assert len(scene.has.ports) == 2 + 4, scene.has.ports
    for kind, what in scene.walk(STRANGER):
        port, _, said = what.partition(" ")
        assert not any(word in said for word in (*scene.secrets, SESSION, WORDS)), (kind, port)
        if kind == "broker" and said.startswith("INFO"):
            assert "'Authorization Violation'" in said
            commands = {line.split(maxsplit=1)[0] for line in said.splitlines() if line}
            assert not commands & {"PONG", "MSG"}
        if kind in {"GET /v1/models", "GET /v1/sessions"} and said.startswith("HTTP"):
            assert re.match(r"HTTP/1\.1 (400|401|404)", said), said
        assert kind != "redis" or not said.startswith(("+PONG", "-NOAUTH"))
