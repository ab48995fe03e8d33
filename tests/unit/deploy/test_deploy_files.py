"""Settings in `compose.yaml`, read from the file: networks, passwords, images."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.worker.settings import WorkerSettings
from shared.bus.accounts import ACCOUNTS as BUS
from shared.redis_accounts import ACCOUNTS as REDIS

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "compose.yaml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
STORES = [name for name in SERVICES if name.startswith("redis")]
WORKERS = [name for name in SERVICES if name.startswith("worker")]


def members(network: str) -> set[str]:
    """The services in a network; one without a network of any kind is in none."""
    connected = {name: one for name, one in SERVICES.items() if one.get("network_mode") != "none"}
    return {name for name, service in connected.items() if network in service.get("networks", ["default"])}


def test_only_its_clients_share_a_network_with_a_store() -> None:
    assert members("store") == {"redis", "kvstate"}
    assert members("kv") == {"redis-kv", "kvstate", *WORKERS}
    assert members("bus") == {"nats", "router", "kvstate", "gateway", "ryz", *WORKERS}
    assert members("edge") == {"gateway", "ryz", "model"}
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
    assert set(more["services"]) == {"redis", "redis-data", "ryz"}
    broker = SERVICES["nats"]
    assert f"streams:{broker['environment']['RYZ_NATS_STREAM_DIR']}" in broker["volumes"]
    assert SERVICES["streams-data"]["network_mode"] == "none"
    assert "streams" in COMPOSE["volumes"]
    persistent = more["services"]["redis"]["command"]
    assert persistent[persistent.index("--appendonly") + 1] == "yes"
    kept = {"--dir", "--appendfsync", "--auto-aof-rewrite-percentage", "--auto-aof-rewrite-min-size"}
    named = {word for word in persistent if word.startswith("--")}
    assert named - kept == {word for word in options[0] if word.startswith("--")}
    assert more["services"]["redis-data"]["network_mode"] == "none"


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
def test_a_password_has_no_default_and_is_demanded_with_the_remedy(account: Any) -> None:
    name = account.password_variable
    assert re.search(rf"\$\{{{name}:\?[^}}]*make secrets[^}}]*\}}", TEXT)
    assert not re.search(rf"\$\{{{name}:?[-+]", TEXT)


def test_no_variable_for_a_secret_has_a_default() -> None:
    assert re.findall(r"\$\{(\w*(?:PASSWORD|SECRET|TOKEN)):?-[^}]+\}", TEXT) == []


def test_a_service_gets_no_password_but_its_own() -> None:
    for name, service in SERVICES.items():
        if name in {"nats", "check-env"} or name in STORES:
            continue
        own = {"ryz": "CLI"}.get(name, name.partition("-")[0].upper())
        found = set(re.findall(r"\$\{(RYZ_\w+_PASSWORD)", str(service)))
        assert found <= {f"RYZ_NATS_{own}_PASSWORD", f"RYZ_REDIS_{own}_PASSWORD", f"RYZ_{own}_PASSWORD"}, name
    assert not any("_NATS_" in str(SERVICES[name]) for name in STORES)
    assert "WORKER" not in str(SERVICES["redis"]), "workers have no user where sessions are"


def test_passwords_are_checked_before_a_service_could_stumble_over_them() -> None:
    check = SERVICES["check-env"]
    demanded = set(re.findall(r"\$\{(\w+_PASSWORD):\?", TEXT))
    keys = {"RYZ_API_KEYS", "RYZ_SESSION_KEY"}
    assert set(check["environment"]) == demanded | keys
    assert (check["network_mode"], check["restart"]) == ("none", "no")
    assert check["command"][-1] == "check"
    assert check["volumes"] == [f"./deploy/configure.py:{check['command'][-2]}:ro"]
    done = {"check-env": {"condition": "service_completed_successfully"}}
    assert all(SERVICES[name]["depends_on"] == done for name in ("model", *STORES))
    assert SERVICES["nats"]["depends_on"] == done | {
        "streams-data": {"condition": "service_completed_successfully"}
    }


def test_workers_read_the_volume_that_the_command_fills() -> None:
    mounts = {name: one["volumes"] for name, one in SERVICES.items() if "models" in str(one.get("volumes"))}
    volume = "${RYZ_MODELS_VOLUME:-models}:/models"
    assert mounts == {"ryz": [volume], "model": [volume], **{name: [f"{volume}:ro"] for name in WORKERS}}
    assert "models" in COMPOSE["volumes"]
    assert SERVICES["ryz"]["profiles"] == ["tools"], "it runs when it is called"
    assert all("model" in SERVICES[name]["depends_on"] for name in WORKERS)
    default = "${RYZ_MODEL:-/models/smollm2-135m.gguf}"
    assert {SERVICES[name]["environment"]["RYZ_MODEL"] for name in ("model", *WORKERS)} == {default}


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
    assert SERVICES["nats"]["command"] == ["--config", "/etc/nats/nats-container.conf"]
    mounted = [volume.split(":")[1:] for volume in SERVICES["nats"]["volumes"]]
    assert mounted == [
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
    others = {"prometheus": "65534:65534", "log-collector": "0:0", "streams-data": "0:0"}
    assert service["user"] == others.get(name, "10001:10001")
    # it gives a new volume to the broker's user, and ends
    assert service.get("cap_add", []) == (["CHOWN"] if name == "streams-data" else [])
    assert service["pids_limit"]
    assert service["mem_limit"]
    assert "privileged" not in service
    assert not any("docker.sock" in str(volume) for volume in service.get("volumes", []))


def test_the_env_file_is_never_committed_nor_sent_to_a_build() -> None:
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored
    assert not any(line.startswith("!.env") for line in ignored)
