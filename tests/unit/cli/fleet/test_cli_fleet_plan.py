"""The processes of a stack with several models: groups, their settings, the gateway's aliases, its probe."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.__main__ import app
from cli.console import CommandError
from cli.stack.fleet.entry import FoundModel, ModelEntry
from cli.stack.machine_facts import machine_facts, measure_model
from cli.stack.model_dir import demo_model
from cli.stack.plan import plan_stack
from cli.stack.probes import Probe, Probes
from services.worker.engine.native import build
from tests.kits.engine.small_program import compiles, use_small_program
from tests.kits.supervisor import options


class NotedProbes(Probes):
    """Notes for which models it waits."""

    models: Sequence[str] = ()

    def gateway(self, url: str, models: Sequence[str], key: str) -> Probe:
        self.models = models
        return super().gateway(url, models, key)


def model(name: str, path: Path, **fields: object) -> FoundModel:
    settled = {"groups": 1, "tensor_parallel": 1, "threads": 1, "precision": "fp32", "kv_cache_tokens": 512}
    entry = ModelEntry.model_validate({"source": str(path), "name": name, **settled, **fields})
    return FoundModel(entry, path)


async def test_each_group_has_the_settings_of_its_model(tmp_path: Path) -> None:
    probes = NotedProbes()
    one = model("one", tmp_path / "a", groups=2, aliases=["gpt-4o"], tool_format="hermes", sampling="openai")
    one = replace(one, draft=tmp_path / "small")
    two = model("two", tmp_path / "b", tensor_parallel=2, aliases=["x-*", "y"], precision="int8")
    given = options(tmp_path, engine="torch", stack="blue")
    plan = plan_stack(given, [one, two], probes, {"RYZ_KV_MEMORY_SHARE": "0.6"})
    await probes.close()
    workers = {spec.name: spec for spec in plan.specs if spec.name.startswith("worker")}
    assert list(workers) == ["worker-g0", "worker-g1", "worker-g2"]
    assert [spec.model for spec in workers.values()] == ["one", "one", "two"]
    names = ("GROUP", "MODEL_NAME", "MODEL", "TENSOR_PARALLEL", "PRECISION", "TOOL_FORMAT")
    found = [[spec.env[f"RYZ_{name}"] for name in names] for spec in workers.values()]
    assert found == [
        ["blue-g0", "one", str(tmp_path / "a"), "1", "fp32", "hermes"],
        ["blue-g1", "one", str(tmp_path / "a"), "1", "fp32", "hermes"],
        ["blue-g2", "two", str(tmp_path / "b"), "2", "int8", ""],
    ]
    assert [spec.env.get("RYZ_SAMPLING_DEFAULTS") for spec in workers.values()] == ["openai", "openai", None]
    drafts = [(spec.env.get("RYZ_DRAFT_MODEL"), spec.env.get("RYZ_SPECULATION")) for spec in workers.values()]
    assert drafts == [(str(tmp_path / "small"), "draft")] * 2 + [(None, None)]
    shares = [float(spec.env["RYZ_KV_MEMORY_SHARE"]) for spec in workers.values()]
    assert shares == pytest.approx([0.2, 0.2, 0.2]), "all groups of all models read the same free memory"
    (gateway,) = [spec for spec in plan.specs if spec.name == "gateway"]
    assert gateway.env["RYZ_MODEL_ALIASES"] == "gpt-4o=one,x-*=two,y=two"
    assert list(probes.models) == ["one", "two"], "the stack is ready when all are listed"
    ports = [spec.env["RYZ_ADMIN_PORT"] for spec in plan.specs if "RYZ_ADMIN_PORT" in spec.env]
    assert len(set(ports)) == len(ports) == 6


async def test_without_aliases_of_its_own_the_gateway_has_those_of_the_environment(tmp_path: Path) -> None:
    probes = Probes()
    plan = plan_stack(options(tmp_path), [model("one", tmp_path)], probes, {"RYZ_MODEL_ALIASES": "a=one"})
    await probes.close()
    assert not any("RYZ_MODEL_ALIASES" in spec.env for spec in plan.specs)


def test_the_plan_of_a_file_is_shown_without_starting_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RYZ_DEVICE", raising=False)
    file = tmp_path / "models.toml"
    file.write_text(
        f'[[models]]\nsource = "demo"\naliases = ["a"]\n[[models]]\nname = "two"\nsource = "{demo_model()}"\n'
        "precision = 'fp32'\nkv_cache_tokens = 4096\ngroups = 3\n"
    )
    shown = CliRunner().invoke(app, ["models", "plan", str(file), "--json"], catch_exceptions=False)
    assert shown.exit_code == 0
    found = json.loads(shown.stdout)
    assert [one["name"] for one in found["models"]] == ["demo", "two"]
    two, total = found["models"][1], found["total"]
    assert (two["groups"], two["ranks"], two["precision"], two["kv_cache_tokens"]) == (3, 3, "fp32", 4096)
    assert two["bytes"] == two["weights_bytes"] + two["kv_bytes"] + two["process_bytes"]
    for field in ("groups", "ranks", "bytes", "kv_bytes"):
        assert total[field] == sum(one[field] for one in found["models"])
    assert total["bytes"] + total["store_bytes"] <= found["machine"]["free_bytes"]
    table = CliRunner().invoke(app, ["models", "plan", str(file)], catch_exceptions=False).stdout
    assert all(word in table for word in ("KV TOKENS", "PROCESSES", "two: 2 M parameters: 3 groups", "4,096"))


@compiles
def test_the_plan_counts_kernels_that_a_start_would_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RYZ_DEVICE", raising=False)
    use_small_program(tmp_path, monkeypatch)
    file = tmp_path / "models.toml"
    file.write_text('[[models]]\nsource = "demo"\n')

    def planned() -> dict[str, Any]:
        shown = CliRunner().invoke(app, ["models", "plan", str(file), "--json"], catch_exceptions=False)
        found: dict[str, Any] = json.loads(shown.stdout)
        return found

    assert not machine_facts(options(tmp_path, kernels="auto")).kernels
    before = planned()
    assert before["models"][0]["precision"] == "bf16"
    assert "no compiled kernels" not in " ".join(before["text"])
    build.ensure()
    assert planned()["models"][0]["precision"] == "bf16"
    monkeypatch.setattr(build, "find", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))  # and no compiler
    without = planned()
    assert without["models"][0]["precision"] == "fp32"
    assert "no compiled kernels" in " ".join(without["text"])


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (2**31, "models.toml:3: demo: The model does not fit into the memory that is free"),
        (0, "The models do not fit beside each other into the memory that is free"),
    ],
)
def test_the_exit_code_is_1_where_models_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: int, said: str
) -> None:
    monkeypatch.delenv("RYZ_DEVICE", raising=False)
    most = tokens or _tokens_that_fit_once()
    file = tmp_path / "models.toml"
    entry = f'[[models]]\nsource = "demo"\nkv_cache_tokens = {most}\ngroups = 1\n'
    file.write_text("\n" + entry + ("" if tokens else entry + 'name = "two"\n'))
    shown = CliRunner().invoke(app, ["models", "plan", str(file)])
    assert isinstance(shown.exception, CommandError)
    assert shown.exception.exit_code == 1
    assert said in str(shown.exception)


def _tokens_that_fit_once() -> int:
    """Tokens of the demo model's KV that take three quarters of the memory that is free."""
    machine = machine_facts(options(Path(), kernels="auto", redis_memory_share=0.4))
    size = measure_model(demo_model(), kernels=machine.kernels)
    return int(0.75 * machine.room_bytes / size.kv_token_bytes("bf16" if machine.kernels else "fp32"))
