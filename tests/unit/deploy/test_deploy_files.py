"""Settings in `compose.yaml`, read from the file: networks, passwords, images."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.containers.init import GROUPS, names
from services.worker.settings import WorkerSettings
from shared.bus.accounts import ACCOUNTS as BUS
from shared.redis_accounts import ACCOUNTS as REDIS

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "compose.yaml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
STORES = [name for name in SERVICES if name.startswith("redis")]
WORKERS = ["worker"]
INIT = {"init": {"condition": "service_completed_successfully"}}


def members(network: str) -> set[str]:
    """The services in a network; one without a network of any kind is in none."""
    connected = {name: one for name, one in SERVICES.items() if one.get("network_mode") != "none"}
    return {name for name, service in connected.items() if network in service.get("networks", ["default"])}


def test_only_its_clients_share_a_network_with_a_store() -> None:
    assert members("store") == {"redis", "kvstate"}
    assert members("kv") == {"redis-kv", "kvstate", *WORKERS}
    assert members("bus") == {"nats", "router", "kvstate", "gateway", "ryz", *WORKERS}
    assert members("edge") == {"gateway", "ryz", "plan"}
    assert members("watch") == {"router", "kvstate", "gateway", *WORKERS, "prometheus", "collector"}
    assert members("telemetry") == {"prometheus", "collector", "loki", "jaeger", "grafana"}
    assert members("logs") == {"log-collector", "loki"}
    assert members("boards") == {"grafana"}
    assert members("default") == set(), "a service without `networks` joins a network with all the others"
    inner = [name for name, network in COMPOSE["networks"].items() if network.get("internal") is True]
    assert set(inner) == {"store", "kv", "bus", "watch", "telemetry", "logs"}


def test_an_address_of_the_network_wants_keys() -> None:
    """The gateway listens on all addresses of its container, so the published address decides about keys."""
    env = SERVICES["gateway"]["environment"]
    assert env["RYZ_HTTP_PUBLISHED"] == "${RYZ_HTTP_BIND:-127.0.0.1}"
    assert env["RYZ_OPEN_TO_NETWORK"] == "${RYZ_OPEN_TO_NETWORK:-false}"


def test_a_tenants_part_of_the_running_slots_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable is nested in another one: older Compose versions do not expand nested variables."""
    for name in WORKERS:
        share = SERVICES[name]["environment"]["RYZ_MAX_RUNNING_PER_TENANT"]
        assert share == "${RYZ_MAX_RUNNING_PER_TENANT:-}"
    assert not re.search(r"\$\{[^}]*\$\{", (ROOT / "compose.yaml").read_text())
    monkeypatch.setenv("RYZ_ENGINE", "null")
    for given, meant in (("", 0.875), ("0.5", 0.5)):
        monkeypatch.setenv("RYZ_MAX_RUNNING_PER_TENANT", given)
        assert WorkerSettings().max_running_per_tenant == meant


def test_streams_are_persistent_and_sessions_only_where_asked() -> None:
    more = yaml.safe_load((ROOT / "deploy" / "compose.persistent.yaml").read_text())
    options = [SERVICES[name]["command"] for name in STORES]
    assert all(command[command.index("--appendonly") + 1] == "no" for command in options)
    assert set(more["services"]) == {"redis", "init", "ryz"}
    broker = SERVICES["nats"]
    assert f"streams:{broker['environment']['RYZ_NATS_STREAM_DIR']}" in broker["volumes"]
    assert "streams" in COMPOSE["volumes"]
    assert "streams:/volumes/streams" in SERVICES["init"]["volumes"]
    assert more["services"]["init"]["volumes"] == ["sessions:/volumes/sessions"]
    persistent = more["services"]["redis"]["command"]
    assert persistent[persistent.index("--appendonly") + 1] == "yes"
    kept = {"--dir", "--appendfsync", "--auto-aof-rewrite-percentage", "--auto-aof-rewrite-min-size"}
    named = {word for word in persistent if word.startswith("--")}
    assert named - kept == {word for word in options[0] if word.startswith("--")}


def test_nothing_is_published_but_the_gateway_and_the_boards_on_loopback() -> None:
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["gateway", "grafana"]
    assert SERVICES["grafana"]["ports"] == ["127.0.0.1:${RYZ_GRAFANA_PORT:-3000}:3000"]
    assert SERVICES["gateway"]["ports"] == ["${RYZ_HTTP_BIND:-127.0.0.1}:${RYZ_HTTP_PORT:-8000}:8000"]


def test_grpc_is_published_only_where_asked_and_at_the_address_of_http() -> None:
    more = yaml.safe_load((ROOT / "deploy" / "compose.grpc.yaml").read_text())
    assert "RYZ_GRPC_PORT" not in SERVICES["gateway"]["environment"]
    assert set(more["services"]) == {"gateway"}
    assert more["services"]["gateway"] == {
        "environment": {"RYZ_GRPC_PORT": "8001"},
        "ports": ["${RYZ_HTTP_BIND:-127.0.0.1}:${RYZ_GRPC_PORT:-8001}:8001"],
    }


@pytest.mark.parametrize("account", [*BUS.values(), *REDIS.values()], ids=lambda one: one.password_variable)
def test_a_password_may_be_given_and_is_else_made(account: Any) -> None:
    name = account.password_variable
    assert SERVICES["init"]["environment"][name] == f"${{{name}:-}}"
    assert TEXT.count(f"${{{name}") == 1, "no other service has it in its environment"


def test_no_variable_for_a_secret_has_a_default() -> None:
    assert re.findall(r"\$\{(\w*(?:PASSWORD|SECRET|TOKEN)):?-[^}]+\}", TEXT) == []


def test_a_service_is_in_the_group_of_its_password_and_in_no_other() -> None:
    roles = {"ryz": "cli"}
    for name, service in SERVICES.items():
        role = roles.get(name, name)
        reads = "secrets:/run/ryzanstein:ro" in service.get("volumes", [])
        assert reads == (role in GROUPS), name
        assert service.get("group_add", []) == ([str(GROUPS[role])] if reads else []), name
        if reads and name != "grafana":
            assert service["entrypoint"][:3] == ["sh", "/etc/ryzanstein/start.sh", role]
    assert len(set(GROUPS.values())) == len(GROUPS)


def test_passwords_are_made_before_a_service_could_want_them() -> None:
    first = SERVICES["init"]
    keys = {"RYZ_API_KEYS", "RYZ_SESSION_KEY"}
    assert set(first["environment"]) == {*names(), *keys}
    assert (first["network_mode"], first["restart"]) == ("none", "no")
    assert first["entrypoint"] == ["python", "/etc/ryzanstein/init.py"]
    assert all(SERVICES[name]["depends_on"] == INIT for name in ("plan", "ryz", "nats", "grafana", *STORES))


def test_workers_read_the_volume_that_the_command_fills() -> None:
    volume = "${RYZ_MODELS_VOLUME:-models}:/models"
    mounts = {name: one.get("volumes", []) for name, one in SERVICES.items()}
    assert [name for name, mounted in mounts.items() if volume in mounted] == ["plan", "ryz"]
    assert [name for name, mounted in mounts.items() if f"{volume}:ro" in mounted] == ["worker"]
    assert "models" in COMPOSE["volumes"]
    assert SERVICES["ryz"]["profiles"] == ["tools"], "it runs when it is called"


def test_workers_are_replaced_when_the_plan_would_be_another() -> None:
    """What the plan is made of is in their environment too, so that Compose sees a change."""
    plan, worker = SERVICES["plan"]["environment"], SERVICES["worker"]["environment"]
    assert set(plan) - set(worker) == {"RYZ_WORKER_MEMORY", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"}
    assert SERVICES["gateway"]["labels"] == [f"ryzanstein.aliases={plan['RYZ_MODELS_FILE']}"]
    assert {name: plan[name] for name in set(plan) & set(worker)}.items() <= worker.items()
    assert SERVICES["worker"]["scale"] == plan["RYZ_GROUPS"] == "${RYZ_GROUPS:-2}"
    assert SERVICES["worker"]["mem_limit"] == plan["RYZ_WORKER_MEMORY"] == "${RYZ_WORKER_MEMORY:-0}"
    assert SERVICES["worker"]["cpuset"] == SERVICES["plan"]["cpuset"] == "${RYZ_CPUSET:-}"
    assert SERVICES["worker"]["depends_on"]["plan"] == INIT["init"]


def test_the_example_names_settings_of_the_file_and_sets_none() -> None:
    lines = (ROOT / ".env.example").read_text().splitlines()
    assert all(line.startswith("#") for line in lines if line), "copied as it is, it changes nothing"
    named = {match[1] for line in lines if (match := re.match(r"# ([A-Z_]+)=", line))}
    assert {"RYZ_MODEL", "RYZ_MODELS_FILE", "RYZ_GROUPS", "RYZ_API_KEYS", "COMPOSE_FILE"} <= named
    assert [name for name in named - {"COMPOSE_FILE"} if f"${{{name}:-" not in TEXT] == []


def test_on_gpus_there_is_one_group_and_its_plan_knows() -> None:
    more = yaml.safe_load((ROOT / "deploy" / "compose.gpu.yaml").read_text())["services"]
    assert more["plan"]["environment"] == more["worker"]["environment"]
    assert more["worker"]["scale"] == more["worker"]["environment"]["RYZ_GROUPS"] == "${RYZ_GROUPS:-1}"
    (device,) = more["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}


def test_images_can_be_pinned() -> None:
    assert re.fullmatch(r"\$\{RYZ_NATS_IMAGE:-nats:[\w.-]+\}", SERVICES["nats"]["image"])
    assert all(
        re.fullmatch(r"\$\{RYZ_REDIS_IMAGE:-redis:[\w.-]+\}", SERVICES[one]["image"]) for one in STORES
    )
    built = [service["build"] for service in SERVICES.values() if "build" in service]
    base = next(line for line in built[0]["args"] if line.startswith("PYTHON_IMAGE="))
    default = re.fullmatch(r"PYTHON_IMAGE=\$\{RYZ_PYTHON_IMAGE:-(python:[\w.-]+)\}", base)
    assert default
    recipe = (ROOT / "deploy" / "Dockerfile").read_text()
    assert f"ARG PYTHON_IMAGE={default[1]}\n" in recipe
    assert set(re.findall(r"^FROM (\S+)", recipe, re.M)) & {"${PYTHON_IMAGE}"}


def test_the_broker_shows_its_monitoring_to_its_own_container_only() -> None:
    config = (ROOT / "deploy" / "nats-container.conf").read_text()
    assert 'http: "127.0.0.1:8222"' in config
    assert "include ./nats.conf" in config
    assert SERVICES["nats"]["command"] == ["nats-server", "--config", "/etc/nats/nats-container.conf"]
    mounted = [volume.split(":")[1:] for volume in SERVICES["nats"]["volumes"]]
    assert mounted == [
        ["/run/ryzanstein", "ro"],
        ["/etc/ryzanstein/start.sh", "ro"],
        ["/etc/nats/nats-container.conf", "ro"],
        ["/etc/nats/nats.conf", "ro"],
        ["/var/lib/ryzanstein"],
    ]


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_is_hardened(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    # Prometheus has its image's own user; Docker's files of logs belong to root, who has no capability here
    others = {"prometheus": "65534:65534", "log-collector": "0:0", "init": "0:0"}
    assert service["user"] == others.get(name, "10001:10001")
    # it gives files and new volumes to those that use them, and ends
    assert service.get("cap_add", []) == (["CHOWN"] if name == "init" else [])
    assert service["pids_limit"]
    assert service["mem_limit"]
    assert "privileged" not in service
    assert not any("docker.sock" in str(volume) for volume in service.get("volumes", []))


def test_the_env_file_is_never_committed_nor_sent_to_a_build() -> None:
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored
    assert not any(line.startswith("!.env") for line in ignored)
