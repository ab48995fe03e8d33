"""`ryz bus-users` with a running stack: users are added and removed under load, and outlive the stack."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.stack.state import StateDir
from shared import subjects
from shared.bus.nats import NatsBus
from shared.client import InferenceClient
from shared.client.generation.results import Completion
from shared.errors import InvalidRequest, Overloaded
from shared.messages import SessionRef
from shared.subjects import Caller
from tests.kits.e2e.stack import ROOT, Stack, ryz
from tests.kits.waiting import until
from tests.kits.worker.leader import chat


def add(folder: Path, *args: str) -> dict[str, str]:
    """The variables that the command prints for the new user."""
    done = ryz("bus-users", "add", *args, cwd=folder)
    assert done.returncode == 0, done.stderr
    return dict(line.split("=", 1) for line in done.stdout.split())


async def ask(url: str, caller: Caller, request_id: str = "r", session: str = "s") -> Completion:
    bus = await NatsBus.connect(url, name="test", connect_wait_s=5)
    client = InferenceClient(bus, caller=caller)
    try:
        await client.start()
        return await client.complete(
            chat(request_id, session=SessionRef(session_id=session), reply_to=""), timeout_s=10
        )
    finally:
        await client.close()
        await bus.close()


async def test_a_user_comes_works_and_goes(null_stack: Stack) -> None:
    folder = null_stack.folder
    restarts = {one.name: one.restarts for one in null_stack.state.services}
    stays = await NatsBus.connect(null_stack.state.nats_url, name="stays")
    reported = await asyncio.to_thread(add, folder, "billing", "--tenant", "acme", "--max-rps", "2")
    assert reported["RYZ_NATS_TENANT"] == "acme"
    url, billing = reported["RYZ_NATS_URL"], Caller("acme", "billing")
    try:
        with pytest.raises(InvalidRequest, match="ask for the tenant 'billing': give the user's"):
            async with InferenceClient.connect(url):
                pass
        assert len((await ask(url, billing)).choices[0].text) == 16
        # the broker enforces the user's name and tenant
        bus = await NatsBus.connect(url, name="test")
        for subject in (
            subjects.generate("demo"),
            subjects.generate("demo", Caller("outside", "billing")),
            subjects.generate("demo", Caller("acme", "outside")),
        ):
            await bus.publish(subject, b"")
        await bus.flush()
        await until(lambda: bus.stats.errors >= 3)
        # of 24 simultaneous requests each router lets a burst of four pass, and what the rate allows
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_slowed(url, billing, number)) for number in range(24)]
        assert 1 <= sum(task.result() for task in tasks) <= 12
        # the user is listed, and its password is stored in no file
        word = url.split(":")[2].partition("@")[0]
        listed = json.loads((await asyncio.to_thread(ryz, "bus-users", "list", "--json", cwd=folder)).stdout)[
            "data"
        ]
        assert listed == [{"name": "billing", "tenant": "acme", "max_rps": 2.0, "max_priority": None}]
        for path in (folder / ".ryz").rglob("*"):
            if path.is_file():
                assert word not in path.read_text(errors="replace"), path
        for name in ("bus-users.json", "nats.conf"):
            assert (folder / ".ryz" / name).stat().st_mode & 0o777 == 0o600
        again = await asyncio.to_thread(ryz, "bus-users", "add", "billing", cwd=folder)
        assert (again.returncode, again.stdout) == (4, "")

        # its removal closes its connection and no other; in a thread, since the broker closes connections
        # that answer no pings
        def remove() -> Any:
            return asyncio.to_thread(ryz, "bus-users", "remove", "billing", cwd=folder)

        assert (await remove()).returncode == 0
        await until(lambda: bus.stats.disconnects > 0)
        await bus.close()
        with pytest.raises(InvalidRequest):
            await NatsBus.connect(url, name="test", connect_wait_s=5)
        assert (await remove()).returncode == 3
        assert stays.stats.disconnects == 0
        assert {one.name: one.restarts for one in null_stack.state.services} == restarts
        assert (await ask(null_stack.state.nats_url, Caller("outside", "outside"))).choices
    finally:
        await stays.close()


async def _slowed(url: str, caller: Caller, number: int) -> bool:
    """Sends a request; returns whether the rate limit let it pass."""
    try:
        await ask(url, caller, f"r{number}", f"s{number}")
    except Overloaded:
        return False
    return True


async def test_users_outlive_their_stack_and_the_example_is_one(tmp_path: Path) -> None:
    before = add(tmp_path, "reports")
    assert before["RYZ_NATS_URL"].startswith("nats://reports:")
    with Stack(tmp_path, "--engine", "null", "--groups", "1") as stack:
        stack.await_ready()
        port = stack.state.nats_url.rpartition(":")[2]
        url = before["RYZ_NATS_URL"].replace("HOST:4222", f"127.0.0.1:{port}")
        for example in ("publish_with_client.py", "plain_nats.py"):
            done = await asyncio.create_subprocess_exec(
                sys.executable, str(ROOT / "examples" / example), "--nats-url", url, "--session", "x",
                "--max-tokens", "16", "--model", "demo", cwd=tmp_path, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            out, _ = await done.communicate()
            assert (done.returncode, len(out.strip())) == (0, 16)
        assert stack.end() == 0
    assert StateDir(tmp_path / ".ryz").read() is None
    rendered = ryz("bus-users", "render", cwd=tmp_path).stdout
    assert 'user: "reports"' in rendered
    assert url.split(":")[2].partition("@")[0] not in rendered


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("add", "gateway"), 4, "every broker of ours has"),
        (("add", "outside"), 4, "every broker of ours has"),
        (("add", "a.b"), 2, "letters, digits"),
        (("add", "ok", "--tenant", "*"), 2, "letters, digits"),
        (("add", "ok", "--max-priority", "11"), 2, "less than or equal to 10"),
        (("remove", "nobody"), 3, "no user nobody"),
    ],
)
def test_what_is_refused(tmp_path: Path, args: tuple[str, ...], code: int, said: str) -> None:
    done = ryz("bus-users", *args, cwd=tmp_path)
    assert done.returncode == code
    assert said in " ".join(done.stderr.split())
    assert (
        ryz("bus-users", "list", "--json", cwd=tmp_path).stdout == '{\n "object": "list",\n "data": []\n}\n'
    )


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    assert ryz("bus-users", "add", "billing", cwd=tmp_path).returncode == 0
    file = tmp_path / ".ryz" / "bus-users.json"
    file.write_text(file.read_text().replace("$2a$", "plain"))
    for args in (
        ("bus-users", "list"),
        ("bus-users", "add", "other"),
        ("up", "--engine", "null", "--port", "0"),
    ):
        done = ryz(*args, cwd=tmp_path)
        assert done.returncode == 1
        assert "bus-users.json is no file of" in " ".join(done.stderr.split())
