"""The plan of a stack: its services, their settings, ports and users."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cli.console import CommandError
from cli.stack.host.ports import require_free
from cli.stack.probes import Probes
from cli.stack.servers import broker as servers
from cli.stack.service_plan import GRACE_S
from shared.bus.accounts import ACCOUNTS
from tests.kits.servers import free_port
from tests.kits.supervisor import options, planned

SERVERS = {"nats", "redis", "redis-kv"}


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
