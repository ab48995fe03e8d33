"""The unmodified examples against a real broker and a scripted leader."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from shared.bus.nats import NatsBus
from shared.messages import AnyFrame, Failed, GenerateRequest
from tests.kits.examples import run_example
from tests.kits.servers import GuardedNats
from tests.kits.waiting import PATIENCE_S
from tests.kits.worker.scripted_leader import ScriptedLeader, answer

both = pytest.mark.parametrize("name", ["publish_with_client.py", "plain_nats.py"])


@both
async def test_it_streams_an_answer(name: str, nats_url: str, nats_bus: NatsBus) -> None:
    leader = await ScriptedLeader(nats_bus).start()
    model = f"tests/{name}"
    code, out, err = await run_example(
        name, "--nats-url", nats_url, "--model", model, "--session", "s1", "--prompt", "Hi"
    )
    assert (code, out) == (0, "w0 w1 w2 w3 \n"), err
    assert "g0" in err
    (request,) = leader.requests
    assert (request.model, request.session and request.session.session_id) == (model, "s1")
    assert [message.content for message in request.messages or []] == ["Hi"]
    assert leader.cancels == []


@both
@pytest.mark.parametrize("lost", [{2}, {0, 1}, {4, 5}])
async def test_it_asks_for_lost_frames(name: str, lost: set[int], nats_url: str, nats_bus: NatsBus) -> None:
    leader = await ScriptedLeader(nats_bus).start()
    leader.lose = lost
    code, out, err = await run_example(name, "--nats-url", nats_url)
    assert (code, out) == (0, "w0 w1 w2 w3 \n"), err
    assert leader.resends


@both
async def test_it_tells_a_failure(name: str, nats_url: str, nats_bus: NatsBus) -> None:
    def fail(request: GenerateRequest) -> list[AnyFrame]:
        failed = Failed(request_id=request.request_id, seq=3, code="group_lost", message="rank 1 died")
        return [*answer(request)[:3], failed]

    await ScriptedLeader(nats_bus, script=fail).start()
    code, out, err = await run_example(name, "--nats-url", nats_url)
    assert (code, out) == (1, "w0 w1 ")
    assert err == "group_lost: rank 1 died\n"


@both
async def test_it_tells_that_no_router_runs(name: str, nats_url: str) -> None:
    code, _, err = await run_example(name, "--nats-url", nats_url)
    assert code == 1
    assert err.startswith("unavailable: no router is running")


@both
async def test_it_gives_up_in_time_and_cancels(name: str, nats_url: str, nats_bus: NatsBus) -> None:
    leader = await ScriptedLeader(nats_bus).start()
    leader.lose = set(range(1, 6))
    leader.resend_limit = 0
    leader.script = lambda request: answer(request)[:1]
    code, _, err = await run_example(name, "--nats-url", nats_url, "--timeout", "0.5")
    assert code == 1
    assert err.startswith("deadline_exceeded: ")
    await asyncio.wait_for(leader.cancelled.wait(), PATIENCE_S)


@both
async def test_no_broker_is_reported_in_a_sentence(name: str) -> None:
    code, _, err = await run_example(name, "--nats-url", "nats://127.0.0.1:9")
    assert code == 1
    (line,) = err.splitlines()
    assert line.startswith("unavailable: ")
    assert "127.0.0.1:9" in line
    assert "RYZ_NATS_URL" in line


@both
async def test_it_finds_the_broker_of_the_variable_and_of_the_stack_that_is_up_here(
    name: str, nats_url: str, nats_bus: NatsBus, tmp_path: Path
) -> None:
    await ScriptedLeader(nats_bus).start()
    code, _, err = await run_example(name, cwd=tmp_path, env={"RYZ_NATS_URL": nats_url})
    assert code == 0, err
    (tmp_path / ".ryz").mkdir()
    (tmp_path / ".ryz" / "up.json").write_text(json.dumps({"nats_url": nats_url}))
    code, _, err = await run_example(name, cwd=tmp_path)
    assert code == 0, err


@both
@pytest.mark.parametrize(
    "whose",
    [
        "a link",
        pytest.param(
            "theirs",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make another user's files"),
        ),
    ],
)
async def test_it_believes_no_state_file_of_another_user(
    name: str, whose: str, nats_url: str, nats_bus: NatsBus, tmp_path: Path
) -> None:
    """Otherwise that user could redirect prompts and the password in the URL to another broker."""
    leader = await ScriptedLeader(nats_bus).start()
    state = tmp_path / ".ryz" / "up.json"
    state.parent.mkdir()
    written = tmp_path / "theirs.json" if whose == "a link" else state
    written.write_text(json.dumps({"nats_url": nats_url}))
    if whose == "a link":
        state.symlink_to(written)
    else:
        os.chown(state, 48_213, 48_213)
    code, out, err = await run_example(name, cwd=tmp_path)
    assert (code, out) == (1, "")
    assert err.startswith("invalid_request: ")
    assert ".ryz/up.json" in err
    assert leader.requests == []


@both
async def test_help(name: str) -> None:
    code, out, _ = await run_example(name, "--help")
    assert code == 0
    assert "--session" in out


async def test_a_user_that_the_broker_refuses_is_told_so(tmp_path: Path) -> None:
    server = GuardedNats(tmp_path)
    server.start()
    try:
        url = f"nats://billing:revoked@127.0.0.1:{server.port}"
        code, _, err = await run_example("plain_nats.py", "--nats-url", url)
    finally:
        server.stop()
    assert code == 1
    assert err.startswith(f"unauthorized: the broker at 127.0.0.1:{server.port} refuses this user (")
    assert "revoked@" not in err
