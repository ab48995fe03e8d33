"""`ryz groups` against leader processes on a real broker."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from typer.testing import CliRunner

from cli.__main__ import app
from shared import codec, subjects
from shared.bus.nats import NatsBus
from shared.messages import Route, Work
from tests.kits.programs.ryz_command import Ryz, refused, ryz_command
from tests.kits.router.live import router_process
from tests.kits.waiting import PATIENCE_S
from tests.kits.worker.leader import chat
from tests.kits.worker.process import worker

SLOW = {"NULL_STEP_DELAY_MS": "10"}


@pytest.fixture
def ryz(nats_url: str, tmp_path: Path) -> Ryz:
    """Runs commands in a directory without a running stack."""
    return ryz_command("groups", "--nats-url", nats_url, "--state-dir", str(tmp_path))


@pytest_asyncio.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def listed(ryz: Ryz) -> dict[str, dict[str, Any]]:
    result = await ryz("list", "--json")
    if result.exit_code:
        return {}
    return {row["group"]: row for row in json.loads(result.stdout)["data"]}


async def ready(ryz: Ryz, *groups: str) -> dict[str, dict[str, Any]]:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await listed(ryz)
            if all(found.get(group, {}).get("state") == "ready" for group in groups):
                return found


async def keep_busy(bus: NatsBus, group: str) -> None:
    """Publishes a request that runs for about a minute."""
    request = chat(f"long-{group}", sampling={"max_tokens": 6000, "ignore_eos": True})
    work = Work(
        request=codec.encode(request), route=Route(group=group, reason=""), reply_to=f"{bus.new_inbox()}.f"
    )
    await bus.publish(subjects.work(group), codec.encode(work))


async def test_groups_are_listed_and_drained(
    ryz: Ryz, nats_url: str, nats_bus: NatsBus, stack: AsyncExitStack
) -> None:
    first = await stack.enter_async_context(worker(nats_url, "cg0", **SLOW))
    other = await stack.enter_async_context(worker(nats_url, "cg1", **SLOW))
    found = await ready(ryz, "cg0", "cg1")
    assert (found["cg0"]["model"], found["cg0"]["running"], found["cg0"]["degraded"]) == ("demo", 0, [])
    table = (await ryz("list")).stdout
    assert "cg0" in table
    assert "ready" in table
    assert "cg0 (ready), cg1 (ready)" in refused(await ryz("drain", "nobody"), 3)
    assert "choose one" in refused(await ryz("drain", "cg0", "--no-wait", "--until-ready"), 2)

    await keep_busy(nats_bus, "cg0")
    async with asyncio.timeout(PATIENCE_S):
        while (await listed(ryz))["cg0"]["running"] != 1:
            pass
    output = json.loads((await ryz("drain", "cg0", "--timeout", "600", "--no-wait", "--json")).stdout)
    assert (output["object"], output["requests"]) == ("group.draining", 1)
    assert output["timeout_s"] == pytest.approx(600, abs=5)
    assert (await listed(ryz))["cg0"]["state"] == "draining"
    assert "with 1 request in hand" in refused(await ryz("drain", "cg0"), 4)
    assert first.returncode is None

    await keep_busy(nats_bus, "cg1")
    said = await ryz("drain", "cg1", "--timeout", "0.5")
    assert said.exit_code == 0, said.output
    assert "cg1 drains" in said.stdout
    assert "cg1 has ended" in said.stdout
    async with asyncio.timeout(PATIENCE_S):
        assert await other.wait() == 0


async def test_waiting_until_it_is_back(ryz: Ryz, nats_url: str, stack: AsyncExitStack) -> None:
    process = await stack.enter_async_context(worker(nats_url, "cg2"))
    before = (await ready(ryz, "cg2"))["cg2"]

    async def start_again() -> None:
        await process.wait()
        await stack.enter_async_context(worker(nats_url, "cg2"))

    starting = asyncio.create_task(start_again())
    result = await ryz("drain", "cg2", "--until-ready", "--json")
    assert result.exit_code == 0, result.output
    output = json.loads(result.stdout)
    assert output["object"] == "group.drained"
    assert output["instance_id"] == before["instance_id"] != output["ready_instance_id"]
    await starting


async def test_one_that_does_not_come_back_is_named(ryz: Ryz, nats_url: str, stack: AsyncExitStack) -> None:
    await stack.enter_async_context(worker(nats_url, "cg3"))
    await stack.enter_async_context(worker(nats_url, "cg4"))
    await ready(ryz, "cg3", "cg4")
    message = refused(await ryz("drain", "cg3", "--until-ready", "--ready-timeout", "1"), 1)
    assert "cg3 has ended, and was not ready again within 1 s" in message


async def test_a_group_that_says_nothing_is_listed_as_lost(
    ryz: Ryz, nats_url: str, nats_bus: NatsBus, stack: AsyncExitStack
) -> None:
    await stack.enter_async_context(router_process(nats_url, nats_bus, "cg-router"))
    frozen = await stack.enter_async_context(worker(nats_url, "cg5"))
    await stack.enter_async_context(worker(nats_url, "cg6"))

    async def becomes(state: str) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = (await listed(ryz)).get("cg5", {})
                if found.get("state") == state:
                    return found

    before = (await ready(ryz, "cg5", "cg6"))["cg5"]
    frozen.send_signal(signal.SIGSTOP)
    lost = await becomes("lost")
    assert (lost["instance_id"], lost["model"], lost["lost"]) == (before["instance_id"], "demo", "silent")
    assert 0 < lost["heard_s_ago"] < 30
    table = (await ryz("list")).stdout
    assert "frozen, last heard" in table
    message = refused(await ryz("drain", "cg5"), 1)
    assert "cg5 cannot drain: its leader does not answer (lost: frozen, last heard" in message
    frozen.send_signal(signal.SIGCONT)
    assert "heard_s_ago" not in await becomes("ready")
    frozen.terminate()  # a clean end is no loss
    stopped = await becomes("stopped")
    assert await frozen.wait() == 0
    assert stopped["instance_id"] == before["instance_id"]
    assert (await listed(ryz))["cg5"]["state"] == "stopped"
    assert "ended by itself" in (await ryz("list")).stdout
    assert "cg5 has stopped already: it ended by itself" in refused(await ryz("drain", "cg5"), 3)


async def test_no_broker(ryz: Ryz) -> None:
    for words in (("list",), ("drain", "g0")):
        message = refused(await ryz(*words, "--nats-url", "nats://127.0.0.1:9"), 1)
        assert "No broker answers at nats://127.0.0.1:9" in message


@pytest.mark.parametrize("command", ["list", "drain"])
def test_every_command_has_help(command: str) -> None:
    result = CliRunner().invoke(app, ["groups", command, "--help"])
    assert result.exit_code == 0
    for option in ("--nats-url", "--state-dir", "--json"):
        assert option in result.stdout
