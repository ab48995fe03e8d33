"""Bus users with a running stack: they are made, changed and revoked under load, and outlive the stack."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.stack.state import StateDir
from shared import subjects
from shared.bus.accounts import with_user
from shared.bus.nats import NatsBus
from shared.bus.passwords import hash_password, new_password
from shared.client import InferenceClient
from shared.client.generation.results import Completion
from shared.errors import InvalidRequest, Overloaded, Unavailable
from shared.messages import SessionRef
from shared.subjects import OutsideService
from tests.kits.e2e.stack import ROOT, Stack, ryz
from tests.kits.waiting import PATIENCE_S, until
from tests.kits.worker.leader import chat


def variables(folder: Path, *args: str) -> dict[str, str]:
    """The variables that a command prints for a user."""
    done = ryz("keys", *args, cwd=folder)
    assert done.returncode == 0, done.stderr
    return dict(line.split("=", 1) for line in done.stdout.split())


def add(folder: Path, name: str, tenant: str, *args: str) -> dict[str, str]:
    """Makes a user of a new tenant."""
    made = ryz("tenants", "create", tenant, cwd=folder)
    assert made.returncode == 0, made.stderr
    return variables(folder, "create", "--bus-user", name, "--tenant", tenant, *args)


async def ask(url: str, caller: OutsideService, request_id: str = "r", session: str = "s") -> Completion:
    bus = await NatsBus.connect(url, name="test", connect_wait_s=5)
    client = InferenceClient(bus, caller=caller)
    try:
        await client.start()
        return await client.complete(
            chat(request_id, session=SessionRef(session_id=session), reply_to=""), timeout_s=PATIENCE_S
        )
    finally:
        await client.close()
        await bus.close()


async def test_a_user_comes_works_and_goes(null_stack: Stack) -> None:
    folder = null_stack.folder
    restarts = {one.name: one.restarts for one in null_stack.state.services}
    stays = await NatsBus.connect(null_stack.state.nats_url, name="stays")
    reported = await asyncio.to_thread(add, folder, "billing", "acme", "--max-rps", "2")
    assert reported["RYZ_NATS_TENANT"] == "acme"
    url, billing = reported["RYZ_NATS_URL"], OutsideService("acme", "billing")
    try:
        with pytest.raises(InvalidRequest, match="ask for the tenant 'billing': give the user's"):
            async with InferenceClient.connect(url):
                pass
        assert len((await ask(url, billing)).choices[0].text) == 16
        # the broker enforces the user's name and tenant
        bus = await NatsBus.connect(url, name="test")
        for subject in (
            subjects.generate("demo"),
            subjects.generate("demo", OutsideService("outside", "billing")),
            subjects.generate("demo", OutsideService("acme", "outside")),
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
        listed = await asyncio.to_thread(ryz, "keys", "list", "--tenant", "acme", "--json", cwd=folder)
        (shown,) = json.loads(listed.stdout)["keys"]
        user = {"name": "billing", "max_rps": 2.0, "max_priority": None, "suspended": False}
        assert (shown["kind"], shown["tenant"], shown["bus_user"]) == ("bus_user", "acme", user)
        for path in (folder / ".ryz").rglob("*"):
            if path.is_file():
                assert word not in path.read_text(errors="replace"), path
        for name in ("bus-users.json", "nats.conf"):
            assert (folder / ".ryz" / name).stat().st_mode & 0o777 == 0o600
        again = await asyncio.to_thread(
            ryz, "keys", "create", "--bus-user", "billing", "--tenant", "acme", cwd=folder
        )
        assert (again.returncode, again.stdout) == (4, "")
        # another password takes the place of this one at once
        rotated = (await asyncio.to_thread(variables, folder, "rotate", "billing"))["RYZ_NATS_URL"]
        await until(lambda: bus.stats.disconnects > 0)
        await bus.close()
        url = rotated
        bus = await NatsBus.connect(url, name="test", connect_wait_s=5)

        # its removal closes its connection and no other; in a thread, since the broker closes connections
        # that answer no pings
        def remove() -> Any:
            return asyncio.to_thread(ryz, "keys", "revoke", "billing", cwd=folder)

        assert (await remove()).returncode == 0
        await until(lambda: bus.stats.disconnects > 0)
        await bus.close()
        with pytest.raises(InvalidRequest):
            await NatsBus.connect(url, name="test", connect_wait_s=5)
        assert (await remove()).returncode == 3
        assert stays.stats.disconnects == 0
        assert {one.name: one.restarts for one in null_stack.state.services} == restarts
        assert (await ask(null_stack.state.nats_url, OutsideService("outside", "outside"))).choices
    finally:
        await stays.close()


async def _let_in(url: str) -> NatsBus:
    """A connection of a user that the broker is about to learn of."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await NatsBus.connect(url, name="test", connect_wait_s=0.2)
            except (InvalidRequest, Unavailable):
                await asyncio.sleep(0.1)


async def _slowed(url: str, caller: OutsideService, number: int) -> bool:
    """Sends a request; returns whether the rate limit let it pass."""
    try:
        await ask(url, caller, f"r{number}", f"s{number}")
    except Overloaded:
        return False
    return True


async def test_the_broker_learns_of_changes_over_http(null_stack: Stack) -> None:
    admin = (null_stack.state_dir.path / "admin.key").read_text().strip()
    await asyncio.to_thread(ryz, "tenants", "create", "web", cwd=null_stack.folder)
    headers = {"Authorization": f"Bearer {admin}"}
    async with httpx.AsyncClient(base_url=f"{null_stack.state.url}/v1/manage", headers=headers) as client:
        made = await client.post("/keys", json={"tenant": "web", "bus_user": {"name": "shop"}})
        assert made.status_code == 201, made.text
        assert not (await client.get("/keys")).json()["keys_required"], "bus users do not close the API"
        url = with_user(null_stack.state.nats_url, "shop", made.json()["password"])

        bus = await _let_in(url)
        assert (await ask(url, OutsideService("web", "shop"))).choices
        changed = await client.patch("/keys/shop", json={"bus_user": {"suspended": True}})
        assert changed.json()["bus_user"]["suspended"]
        await until(lambda: bus.stats.disconnects > 0)
        await bus.close()
        assert (await client.patch("/keys/shop", json={"bus_user": {"suspended": False}})).status_code == 200
        await (await _let_in(url)).close()
        gone = await client.delete("/tenants/web?with_keys=true")
        assert gone.json()["revoked_keys"] == [made.json()["id"]]


async def test_users_of_an_earlier_release_outlive_their_stack_and_the_example_is_one(tmp_path: Path) -> None:
    word = new_password()
    state = tmp_path / ".ryz"
    state.mkdir(mode=0o700)
    (state / ".ryz-state").touch()
    (state / "bus-users.json").write_text(
        json.dumps(
            {"users": [{"name": "reports", "tenant": "reports", "password_hash": hash_password(word)}]}
        )
    )
    with Stack(tmp_path, "--engine", "null", "--groups", "1") as stack:
        stack.await_ready()
        url = with_user(stack.state.nats_url, "reports", word)
        listed = json.loads((await asyncio.to_thread(ryz, "keys", "list", "--json", cwd=tmp_path)).stdout)
        users = [one["bus_user"]["name"] for one in listed["keys"] if one["kind"] == "bus_user"]
        assert users == ["reports"]
        for example in ("publish_with_client.py", "plain_nats.py"):
            done = await asyncio.create_subprocess_exec(
                sys.executable, str(ROOT / "examples" / example), "--nats-url", url, "--session", "x",
                "--max-tokens", "16", "--model", "demo", cwd=tmp_path, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            out, _ = await done.communicate()
            assert (done.returncode, len(out.strip())) == (0, 16)
        rendered = (await asyncio.to_thread(ryz, "keys", "broker-config", cwd=tmp_path)).stdout
        assert 'user: "reports"' in rendered
        assert word not in rendered
        assert stack.end() == 0
    assert StateDir(tmp_path / ".ryz").read() is None
    with Stack(tmp_path, "--engine", "null", "--groups", "1") as stack:
        stack.await_ready()
        url = with_user(stack.state.nats_url, "reports", word)
        assert (await ask(url, OutsideService("reports", "reports"))).choices
        assert stack.end() == 0


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("keys", "create", "--bus-user", "a.b"), 2, "letters, digits"),
        (("keys", "create", "--bus-user", "ok", "--max-priority", "11"), 2, "from -10 to 10"),
        (("keys", "create", "--max-rps", "2"), 2, "are of bus users"),
        (("bus-users", "add", "billing", "--tenant", "acme"), 2, "ryz keys create --bus-user"),
        (("bus-users", "list", "--json"), 2, "`ryz keys list` now"),
        (("bus-users", "remove", "billing"), 2, "ryz keys revoke"),
        (("bus-users", "render"), 2, "ryz keys broker-config"),
    ],
)
def test_what_is_refused(tmp_path: Path, args: tuple[str, ...], code: int, said: str) -> None:
    done = ryz(*args, cwd=tmp_path)
    assert (done.returncode, said in " ".join(done.stderr.split())) == (code, True), done.stderr


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    state = tmp_path / ".ryz"
    state.mkdir(mode=0o700)
    (state / ".ryz-state").touch()
    (state / "bus-users.json").write_text('{"users": [{"name": "billing"}]}')
    done = ryz("up", "--engine", "null", "--port", "0", cwd=tmp_path)
    assert done.returncode == 1
    assert "bus-users.json is no file of" in " ".join(done.stderr.split())
