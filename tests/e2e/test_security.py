"""A stack as `ryz up` starts it: its broker knows its users, and no password lies where it should not."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from shared import subjects
from shared.bus import RequestTimedOut
from shared.bus.accounts import ACCOUNTS
from shared.bus.nats import NatsBus
from shared.errors import InvalidRequest
from tests.e2e.kit import Stack, ryz, wait_for

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack of this file alone: its logs are looked at, and a leader is killed."""
    with Stack(tmp_path_factory.mktemp("guarded-stack"), "--engine", "null") as stack:
        yield stack.await_ready()
        assert stack.end() == 0
        assert [path.name for path in stack.place.path.iterdir()] == ["logs"]


def passwords(stack: Stack) -> list[str]:
    found = [url.partition("@")[0].rpartition(":")[2] for url in stack.state.nats_urls.values()]
    assert len(set(found)) == len(ACCOUNTS)
    return found


def logs(stack: Stack) -> dict[str, str]:
    return {path.stem: path.read_text() for path in stack.place.logs.glob("*.log")}


def use(stack: Stack) -> None:
    """Something of everything that goes over the broker."""
    with httpx.Client(base_url=stack.state.url, timeout=30) as http:
        body = {"model": "demo", "max_tokens": 40, "messages": [{"role": "user", "content": "Hello?"}]}
        session = {"X-Session-Id": "secure-1"}
        assert http.post("/v1/chat/completions", json=body, headers=session).status_code == 200
        assert http.get("/v1/models").json()["data"]
        for method, path in (("GET", "/v1/sessions"), ("GET", "/v1/sessions/secure-1")):
            assert http.request(method, path).status_code == 200
        pin = http.post("/v1/sessions/secure-1/pin", json={"group": "g0"})
        assert pin.status_code < 500, pin.text
        move = http.post("/v1/sessions/secure-1/move", json={"group": "g1"})
        assert move.status_code < 500, move.text
        exported = http.get("/v1/sessions/secure-1/export")
        assert exported.status_code == 200
        assert http.delete("/v1/sessions/secure-1").status_code < 300
    assert ryz("status", cwd=stack.folder).returncode == 0
    assert ryz("groups", "list", cwd=stack.folder).returncode == 0


def test_everything_works_and_the_broker_refuses_nothing(guarded: Stack) -> None:
    use(guarded)
    said = logs(guarded)
    refused = [line for line in said["nats"].splitlines() if "Violation" in line]
    assert [line for line in refused if "user:outside" not in line] == []
    assert not [name for name, text in said.items() if "the broker forbids" in text]


def test_passwords_are_where_they_belong(guarded: Stack) -> None:
    secret = passwords(guarded)
    folder = guarded.place.path
    for name in ("up.json", "nats.conf"):
        assert (folder / name).stat().st_mode & 0o777 == 0o600
    guarded.remember()
    shown = {
        "status": ryz("status", cwd=guarded.folder).stdout,
        "status --json": ryz("status", "--json", cwd=guarded.folder).stdout,
        "nats.conf": (folder / "nats.conf").read_text(),
        **logs(guarded),
        **{f"argv of {one.pid}": " ".join(one.cmdline()) for one in guarded.family},
    }
    assert [place for place, text in shown.items() if any(word in text for word in secret)] == []
    # the one for services outside is told to whoever starts the stack
    told = Path(guarded.output).read_text()
    assert guarded.state.nats_url == guarded.state.nats_urls["outside"]
    assert guarded.state.nats_url in told
    assert [word for word in secret if word in told] == [guarded.state.nats_url.split(":")[2].split("@")[0]]


async def test_nobody_comes_in_without_a_password(guarded: Stack) -> None:
    with pytest.raises(InvalidRequest, match="without a user"):
        await NatsBus.connect(f"nats://{guarded.state.nats_url.rpartition('@')[2]}", name="test")
    refused = ryz("status", "--nats-url", "nats://cli:guess@" + guarded.state.nats_url.rpartition("@")[2],
                  cwd=guarded.folder)  # fmt: skip
    assert refused.returncode == 1
    assert "'cli' with this password" in " ".join(refused.stderr.split())
    assert "guess" not in refused.stderr


async def test_a_service_outside_reaches_no_session(guarded: Stack) -> None:
    bus = await NatsBus.connect(guarded.state.nats_url, name="outside")
    try:
        for subject in (subjects.SESSION_LIST, subjects.SESSION_GET, subjects.work("g0"), subjects.STATUS):
            with pytest.raises(RequestTimedOut):
                await bus.request(subject, b"\x80", timeout_s=0.3)
    finally:
        await bus.close()


def test_the_broker_tells_routers_that_a_leader_is_gone(guarded: Stack) -> None:
    os.kill(guarded.pid_of("worker-g1"), signal.SIGKILL)

    def told() -> bool:
        lines = logs(guarded)["router"].splitlines()
        lost = [json.loads(line) for line in lines if '"group lost"' in line]
        return any(one["group"] == "g1" and one["reason"] == "disconnected" for one in lost)

    wait_for(told, "the router knows it from the broker")
    wait_for(lambda: guarded.state.services[-2].ready and guarded.pid_of("worker-g1") > 0, "it is back", 30)
