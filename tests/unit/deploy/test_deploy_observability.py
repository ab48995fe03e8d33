"""The profile `observability` of compose.yaml: its files name each other, and Prometheus takes its own."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from shared.telemetry.logs.schema import FIELDS
from tests.unit.deploy.test_deploy_files import ROOT, SERVICES

FOLDER = ROOT / "deploy" / "observability"
WATCHERS = {name: one for name, one in SERVICES.items() if one.get("profiles") == ["observability"]}
JOBS = {"gateway", "router", "kvstate", "worker"}  # as the rules in deploy/prometheus name them
WATCHED = {"gateway", "router", "kvstate", *(name for name in SERVICES if name.startswith("worker"))}


def read(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Its files of the repository, by their place in the container."""
    parts = [volume.split(":") for volume in service.get("volumes", []) if volume.startswith("./")]
    return {part[1]: part[0] for part in parts if part[2] == "ro"}


def test_its_services_run_only_when_asked_for_and_are_as_tight_as_the_others() -> None:
    assert set(WATCHERS) == {"prometheus", "collector", "log-collector", "loki", "jaeger", "grafana"}
    for name, one in WATCHERS.items():
        assert one["read_only"] is True, name
        assert one["cap_drop"] == ["ALL"], name
        assert one["user"] != "0:0" or name == "log-collector"
        assert re.fullmatch(r"\$\{RYZ_\w+_IMAGE:-[a-z/-]+:[\w.-]+\}", one["image"]), name
        assert set(one.get("depends_on", ())) == ({"init"} if name == "grafana" else set())
        for path in mounts(one).values():
            assert (ROOT / path).exists(), path
    assert WATCHERS["log-collector"]["networks"] == ["logs"], "it can read what belongs to other containers"
    assert not [name for name, one in SERVICES.items() if set(one.get("depends_on", ())) & set(WATCHERS)]


def test_prometheus_asks_every_service_with_the_key() -> None:
    config = read("prometheus.yaml")
    jobs = [job for job in config["scrape_configs"] if job["job_name"] in JOBS]
    found = {name for job in jobs for names in job.get("dns_sd_configs", []) for name in names["names"]}
    found |= {
        target.split(":")[0]
        for job in jobs
        for one in job.get("static_configs", [])
        for target in one["targets"]
    }
    assert found == WATCHED
    key = "/run/prometheus/metrics-key"
    assert all(job["authorization"] == {"credentials_file": key} for job in jobs)
    start = (FOLDER / "prometheus-start.sh").read_text()
    assert key in start
    assert "unset RYZ_METRICS_KEY" in start
    assert "RYZ_METRICS_KEY" in WATCHERS["prometheus"]["environment"]
    assert {job["job_name"] for job in jobs} == JOBS
    ports = {one["port"] for job in jobs for one in job.get("dns_sd_configs", [])}
    assert ports == {
        int(re.findall(r"RYZ_ADMIN_PORT=(\d+)", (ROOT / "deploy" / "Dockerfile").read_text())[0])
    }


def test_prometheus_gets_every_file_of_rules() -> None:
    files = [*(ROOT / "deploy").glob("alerts*.yaml"), *(ROOT / "deploy" / "prometheus").glob("*.yaml")]
    mounted = {ROOT / path for path in mounts(WATCHERS["prometheus"]).values()}
    assert files
    assert [str(one) for one in files if one not in mounted and one.parent not in mounted] == []


def test_spans_go_from_the_services_to_the_collector_and_on_to_jaeger() -> None:
    ours = SERVICES["gateway"]["environment"]
    assert ours["RYZ_TRACE_EXPORT"] == "${RYZ_TRACE_EXPORT:-none}"
    address = re.fullmatch(r"http://(\w+):(\d+)/v1/traces", ours["RYZ_OTLP_ENDPOINT"])
    assert address is not None
    assert address[1] in WATCHERS
    collector = read("collector.yaml")
    assert collector["receivers"]["otlp"]["protocols"]["http"]["endpoint"].endswith(f":{address[2]}")
    for policy in collector["processors"]["tail_sampling"]["policies"]:
        key = policy.get("numeric_attribute", {}).get("key", "ryz.attempt")
        assert f'"{key}"' in (ROOT / "services" / "worker" / "leader" / "request_spans.py").read_text()
    (way_out,) = collector["service"]["pipelines"]["traces"]["exporters"]
    host, port = collector["exporters"][way_out]["endpoint"].split(":")
    assert host in WATCHERS
    assert read("jaeger.yaml")["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"].endswith(f":{port}")
    for name in ("collector.yaml", "jaeger.yaml", "logs.yaml"):
        config = read(name)
        for pipeline in config["service"]["pipelines"].values():
            for kind, used in pipeline.items():
                assert set(used) <= set(config[kind]), name
        assert set(config["service"].get("extensions", [])) == set(config.get("extensions", {}))


def test_logs_of_this_stack_alone_go_to_loki_and_ids_are_no_labels() -> None:
    tag = SERVICES["router"]["logging"]["options"]["tag"].partition("{")[0]
    config = read("logs.yaml")
    operators = config["receivers"]["filelog"]["operators"]
    (filter_,) = [one for one in operators if one["type"] == "filter"]
    assert f'startsWith "{tag}"' in filter_["expr"]
    used = set(re.findall(r"attributes\.line\.(\w+)", str(operators)))
    assert used <= set(FIELDS), "these are fields of our lines"
    assert {"level", "trace_id", "service", "request_id"} <= used
    assert config["exporters"]["otlphttp/loki"]["endpoint"] == "http://loki:3100/otlp"
    resources = read("loki.yaml")["limits_config"]["otlp_config"]["resource_attributes"]
    assert resources["ignore_defaults"] is True
    (labels,) = resources["attributes_config"]
    assert set(labels["attributes"]) == {"service.name", "container.name"}


def test_grafana_knows_its_sources_and_boards() -> None:
    sources = read("grafana/datasources.yaml")["datasources"]
    assert {one["uid"]: one["url"] for one in sources} == {
        "prometheus": "http://prometheus:9090",
        "loki": "http://loki:3100",
        "jaeger": "http://jaeger:16686",
    }
    (provider,) = read("grafana/boards.yaml")["providers"]
    paths = mounts(WATCHERS["grafana"])
    assert paths[provider["options"]["path"]] == "./deploy/grafana"
    assert WATCHERS["grafana"]["environment"]["GF_SECURITY_ADMIN_PASSWORD__FILE"] == "/run/ryzanstein/grafana"


def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool on PATH (Debian: the package prometheus)")
    text = (FOLDER / "prometheus.yaml").read_text()
    (tmp_path / "key").write_text("key")
    text = text.replace("/run/prometheus/metrics-key", str(tmp_path / "key"))
    for number, index in enumerate(mounts(WATCHERS["prometheus"]).values()):
        if index.endswith(("alerts.yaml", "/prometheus")):
            there = ROOT / index
            files = [there] if there.is_file() else there.glob("*.yaml")
            for one in files:
                shutil.copy(one, tmp_path / f"{number}-{one.name}")
    config = tmp_path / "prometheus.yml"
    config.write_text(text.replace("/etc/prometheus/rules/", f"{tmp_path}/"))
    done = subprocess.run(
        [promtool, "check", "config", str(config)], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "rules found" in done.stdout
