"""All groups and both routers are restarted gracefully under load: no stream is dropped or refused."""

import json
import os
import signal

import pytest

from tests.kits.chaos.scale import scaled
from tests.kits.chaos.services import await_idle, await_next
from tests.kits.chaos.streams import Readers, http_client, make_bodies, undisturbed
from tests.kits.e2e.stack import Stack, ryz

pytestmark = pytest.mark.timeout(scaled(300, 1200))


def drain(stack: Stack, group: str) -> None:
    """Drains a group and waits until its restarted worker is ready."""
    result = ryz("groups", "drain", group, "--timeout", "0.3", "--until-ready", "--json", cwd=stack.folder)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["object"] == "group.drained"


def test_rolling_restart_of_groups_and_routers(pair: Stack) -> None:
    bodies = make_bodies("demo", scaled(6, 24), 128)
    with http_client(pair.state.url) as client:
        expected = undisturbed(client, bodies)
        for _ in range(scaled(1, 6)):
            with Readers(client, bodies, expected, sessions=True) as readers:
                for group in ("g0", "g1"):
                    before = pair.pid_of(f"worker-{group}")
                    drain(pair, group)
                    assert pair.pid_of(f"worker-{group}") != before
                for name in ("router", "router-2"):
                    router = pair.pid_of(name)
                    os.kill(router, signal.SIGTERM)
                    await_next(pair, name, router)
                    readers.await_streams(len(bodies))
            print(readers.streams)
    await_idle(pair, groups=2)
