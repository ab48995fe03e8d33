"""A stack started by `ryz up` has broker users with permissions, and exposes no password."""

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from cli.stack.state import StateDir
from shared import subjects
from shared.bus import RequestTimedOut
from shared.bus.accounts import ACCOUNTS
from shared.bus.nats import NatsBus
from shared.errors import InvalidRequest
from tests.kits.e2e import leaked_secrets
from tests.kits.e2e.stack import RYZ, Stack, ryz
from tests.kits.e2e.written_lines import check_lines, lines_of, wait_for_lines
from tests.kits.waiting import wait_for


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack that only this file uses, because the tests read its logs and kill a leader."""
    with Stack(
        tmp_path_factory.mktemp("guarded-stack"), "--engine", "null", env=leaked_secrets.ENVIRONMENT
    ) as stack:
        yield stack.await_ready()
        assert stack.end() == 0
        kept = {"admin.key", "jetstream"}
        assert {path.name for path in stack.state_dir.path.iterdir()} == {"logs", ".ryz-state"} | kept


def passwords(stack: Stack) -> list[str]:
    state = stack.state
    urls = [*state.nats_urls.values(), state.redis_url, state.kv_redis_url]
    found = [url.partition("@")[0].rpartition(":")[2] for url in urls]
    assert len(set(found)) == len(ACCOUNTS) + 2
    return found


def logs(stack: Stack) -> dict[str, str]:
    return {path.stem: path.read_text() for path in stack.state_dir.logs.glob("*.log")}


def use(stack: Stack) -> None:
    """Uses every kind of message on the broker."""
    key = {"Authorization": f"Bearer {leaked_secrets.API_KEY}"}
    with httpx.Client(base_url=stack.state.url, timeout=30, headers=key) as http:
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
    folder = guarded.state_dir.path
    for path in (folder, *folder.rglob("*")):
        assert path.lstat().st_mode & 0o077 == 0, f"others may do something with {path}"
    guarded.remember()
    shown = {
        "status": ryz("status", cwd=guarded.folder).stdout,
        "status --json": ryz("status", "--json", cwd=guarded.folder).stdout,
        **{name: (folder / name).read_text() for name in ("nats.conf", "redis.conf", "redis.acl")},
        "what the command printed to a file": Path(guarded.output).read_text(),
        **logs(guarded),
        **{f"argv of {one.pid}": " ".join(one.cmdline()) for one in guarded.family},
    }
    assert [source for source, text in shown.items() if any(word in text for word in secret)] == []
    assert guarded.state.nats_url == guarded.state.nats_urls["outside"]


def test_a_detached_stack_tells_no_terminal_and_no_log_its_passwords(tmp_path: Path) -> None:
    terminal, inside = pty.openpty()
    command = [*RYZ, "up", "--detach", "--port", "0", "--engine", "null", "--groups", "1"]
    (tmp_path / ".ryz" / "logs").mkdir(parents=True, mode=0o755)  # an earlier version made it with this mode
    with subprocess.Popen(command, cwd=tmp_path, stdin=inside, stdout=inside, stderr=inside) as starting:
        os.close(inside)
        shown = read_all(terminal)
        assert starting.wait(60) == 0, shown
    source = StateDir(tmp_path / ".ryz")
    state = source.read()
    assert state is not None
    try:
        secret = state.nats_url.split(":")[2].partition("@")[0]
        assert f"broker nats://***@{state.nats_url.partition('@')[2]}" in shown.replace("\r\n", "")
        assert secret not in shown, "terminals are recorded and shown to others"
        output = {path.name: path.read_text() for path in source.logs.iterdir()}
        assert "supervisor.log" in output
        assert [name for name, text in output.items() if secret in text] == []
        modes = {str(path): path.lstat().st_mode & 0o077 for path in (source.path, *source.path.rglob("*"))}
        assert {path for path, mode in modes.items() if mode} == set()
    finally:
        assert ryz("down", cwd=tmp_path).returncode == 0


def test_a_detached_start_that_fails_shows_its_log_without_escapes(tmp_path: Path) -> None:
    terminal, inside = pty.openpty()
    command = [*RYZ, "up", "--detach", "--port", "0", "--engine", "null", "--groups", "1"]
    env = os.environ | {"RYZ_ROUTER_THRESHOLD": "many"}
    with subprocess.Popen(
        command, cwd=tmp_path, stdin=inside, stdout=inside, stderr=inside, env=env
    ) as starting:
        os.close(inside)
        shown = read_all(terminal)
        assert starting.wait(60) == 1, shown
    assert "RYZ_ROUTER_THRESHOLD='many'" in shown.replace("\r\n", "")
    assert "\\x1b" not in shown, "styles of the log are escapes that the terminal is shown in words"
    assert "\x1b" not in (tmp_path / ".ryz" / "logs" / "supervisor.log").read_text()


def read_all(terminal: int) -> str:
    """Reads a terminal until its last writer closes it."""
    text = b""
    with open(terminal, "rb", buffering=0) as file, suppress(OSError):  # on Linux the end is an OSError
        while part := file.read(4096):
            text += part
    return text.decode()


@pytest.mark.parametrize("how", [[], ["--detach"]])
def test_an_open_network_has_to_be_meant(tmp_path: Path, how: list[str]) -> None:
    refused = ryz("up", "--host", "0.0.0.0", "--port", "0", "--engine", "null", *how, cwd=tmp_path,
                  env={"RYZ_API_KEYS": ""})  # fmt: skip
    assert refused.returncode == 2
    said = " ".join(refused.stderr.split())
    assert "RYZ_API_KEYS=KEY:TENANT" in said
    assert "--open-to-network" in said
    assert not (tmp_path / ".ryz").exists(), "nothing was started"


async def test_no_client_comes_in_without_a_password(guarded: Stack) -> None:
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


def test_the_lines_of_a_request_that_moved_name_it_and_its_trace_in_every_service(guarded: Stack) -> None:
    leaked_secrets.move_a_stream(guarded, "told-8")
    lines = wait_for_lines(guarded, "told-8", "request")
    assert {one["trace_id"] for one in lines} == {leaked_secrets.TRACE}
    events = {(one["service"], one["event"]) for one in lines}
    assert {
        ("gateway", "request offered to another group"),
        ("gateway", "request goes on"),
        ("gateway", "request"),
        ("router", "session moved"),
        ("worker", "prompt taken"),
    } <= events
    shown = ryz("logs", "--request", leaked_secrets.TRACE, "--json", cwd=guarded.folder).stdout
    written = [json.loads(line) for line in shown.splitlines()]  # spans are among them
    assert len({one["service"] for one in written if "service" in one}) == 3


def test_the_broker_tells_routers_that_a_leader_is_gone(guarded: Stack) -> None:
    os.kill(guarded.pid_of("worker-g1"), signal.SIGKILL)

    def routers_know() -> bool:
        lines = logs(guarded)["router"].splitlines()
        lost = [json.loads(line) for line in lines if '"group lost"' in line]
        return any(one["group"] == "g1" and one["reason"] == "disconnected" for one in lost)

    wait_for(routers_know, "the router knows it from the broker")
    wait_for(lambda: guarded.state.services[-2].ready and guarded.pid_of("worker-g1") > 0, "it is back")


def test_no_text_and_no_key_is_reported_also_when_something_fails(guarded: Stack) -> None:
    leaked_secrets.use_with_words(guarded)
    reported = leaked_secrets.all_output(guarded)
    admin_key = (guarded.state_dir.path / "admin.key").read_text().strip()
    words = (*leaked_secrets.SECRETS, *passwords(guarded), admin_key)
    found = {(where, word) for where, text in reported.items() for word in words if word in text}
    assert found == set()
    assert "prompt taken" in reported["log of worker-g0"] + reported["log of worker-g1"], "debug level"
    assert '"kind": "SpanKind' in "".join(reported.values()), "there are spans"
    (trace,) = {one["trace_id"] for one in lines_of(guarded, "told-1")}
    assert trace != leaked_secrets.TRACE, "without a caller's trace the gateway makes one"
    # and the router, if the group took the request late
    assert {"gateway", "worker"} == {one["service"] for one in lines_of(guarded, "told-1")} - {"router"}
    assert "told-1" in reported["explain"] or "told-8" in reported["explain"], "what is told is looked at"


def test_every_line_of_ours_follows_the_schema(guarded: Stack) -> None:
    """Runs last: services have logged all that the tests before caused."""
    events, wrong = check_lines(guarded)
    assert wrong == {}
    assert len(events) > 20
