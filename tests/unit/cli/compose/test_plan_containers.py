"""`ryz plan-containers`: what the groups of `compose.yaml` get, from settings or a models file."""

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from cli.__main__ import app
from cli.console import CommandError
from cli.stack.compose import plan as planning
from cli.stack.compose.container_facts import STORES_BYTES, container_facts
from cli.stack.memory_needs import STORE_OVERHEAD
from cli.stack.model_dir import demo_model
from services.worker.engine.native import build
from services.worker.settings import WorkerSettings
from shared.host import cgroup_memory, cores_and_memory
from shared.settings import load

ROOT = Path(__file__).parents[4]
BASE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
TWO = """[[models]]
source = "demo"
aliases = ["small-*", "mini"]

[[models]]
source = "demo"
name = "two"
groups = 2
kv_cache_tokens = 8192
sampling = { temperature = 0.0 }
"""


@pytest.fixture(autouse=True)
def _container(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings as `compose.yaml` leaves them; workers see the demo model of this checkout."""
    for name in ("RYZ_DEVICE", "RYZ_MODEL", "RYZ_MODEL_ALIASES", "RYZ_GROUPS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in BASE["plan"]["environment"].items():
        monkeypatch.setenv(name, value.partition(":-")[2].removesuffix("}"))
    monkeypatch.setattr(
        planning.plan_containers, "__kwdefaults__", {"again": False, "seen": (ROOT / "models",)}
    )


def planned(folder: Path, *options: str) -> str:
    """Runs the command as the container does; raises what it would end with."""
    (folder / "plan").mkdir(exist_ok=True)
    arguments = ["plan-containers", str(folder / "plan"), "--models-file", "/dev/null", *options]
    done = CliRunner().invoke(app, arguments)
    if done.exception is not None:
        raise done.exception
    return done.stdout


def from_file(folder: Path, text: str, *options: str) -> str:
    file = folder / "models.toml"
    file.write_text(text)
    return planned(folder, "--models-file", str(file), *options)


def read(folder: Path, name: str) -> dict[str, str]:
    """What a shell that has read the file hands on."""
    command = ["env", "-i", "sh", "-c", f". {folder}/plan/{name}.env; env"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {key: value for key, _, value in (line.partition("=") for line in lines) if key.startswith("RYZ_")}


def test_one_model_gets_its_groups_and_settings_for_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RYZ_MODEL", "demo")
    monkeypatch.setenv("RYZ_THREADS", "3")
    monkeypatch.setenv("RYZ_TENSOR_PARALLEL", "2")
    said = planned(tmp_path)
    assert "two groups" in said
    assert sorted(path.name for path in (tmp_path / "plan").glob("*.env")) == [
        "g1.env", "g2.env", "gateway.env", "more.env",
    ]  # fmt: skip
    first = read(tmp_path, "g1")
    assert first == read(tmp_path, "g2")
    assert first["RYZ_MODEL"] == str(demo_model())
    assert (first["RYZ_THREADS"], first["RYZ_TENSOR_PARALLEL"]) == ("3", "2")
    assert int(first["RYZ_KV_CACHE_TOKENS"]) >= 2048
    assert "RYZ_PACKED_DIR" not in first, "containers share no directory that workers may write"
    assert read(tmp_path, "more") == first | {"RYZ_KV_CACHE_TOKENS": "0"}
    assert read(tmp_path, "gateway") == {"RYZ_MODEL_ALIASES": ""}


@pytest.mark.parametrize("engine", ["vllm", "null"])
def test_what_is_not_planned_is_no_empty_setting(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RYZ_MODEL", "demo")
    monkeypatch.setenv("RYZ_ENGINE", engine)
    planned(tmp_path)
    # a worker has all variables that Compose hands on, most of them empty, and then the plan
    compose = BASE["worker"]["environment"].items()
    given = {
        name: str(value).partition(":-")[2].removesuffix("}") for name, value in compose if ":-" in str(value)
    }
    plan = f". {tmp_path}/plan/g1.env; env"
    command = [
        "env",
        "-i",
        *(f"{name}={value}" for name, value in given.items()),
        f"RYZ_ENGINE={engine}",
        "sh",
        "-c",
        plan,
    ]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    monkeypatch.setenv("RYZ_VLLM_PYTHON", "/opt/vllm/bin/python")
    for name in given:
        monkeypatch.delenv(name, raising=False)
    for name, _, value in (line.partition("=") for line in lines):
        monkeypatch.setenv(name, value)
    assert load(WorkerSettings).engine == engine


def test_a_plan_is_kept_until_what_it_was_made_of_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RYZ_MODEL", "demo")
    facts = container_facts(2)
    assert "made before" not in planned(tmp_path)
    tokens = read(tmp_path, "g1")["RYZ_KV_CACHE_TOKENS"]
    # as if the workers of the plan had most of the memory now
    taken = replace(facts, free_bytes=1700 * 2**20)
    monkeypatch.setattr(planning, "container_facts", lambda *_: taken)
    assert "made before" in planned(tmp_path)
    assert read(tmp_path, "g1")["RYZ_KV_CACHE_TOKENS"] == tokens
    assert "made before" not in planned(tmp_path, "--again")
    assert int(read(tmp_path, "g1")["RYZ_KV_CACHE_TOKENS"]) < int(tokens)
    monkeypatch.setenv("RYZ_KV_CACHE_TOKENS", "4096")
    assert "made before" not in planned(tmp_path)
    assert read(tmp_path, "g1")["RYZ_KV_CACHE_TOKENS"] == "4096"


def test_each_group_of_a_models_file_has_its_model_and_the_gateway_its_aliases(tmp_path: Path) -> None:
    from_file(tmp_path, TWO, "--containers", str(_groups(tmp_path)))
    names = {path.stem: read(tmp_path, path.stem) for path in (tmp_path / "plan").glob("g[0-9].env")}
    models = [names[group]["RYZ_MODEL_NAME"] for group in sorted(names)]
    assert models in (["demo", "two", "two"], ["demo", "demo", "two", "two"])
    last = names[max(names)]
    assert last["RYZ_KV_CACHE_TOKENS"] == "8192"
    assert last["RYZ_SAMPLING_DEFAULTS"] == "temperature=0.0"
    assert "RYZ_SAMPLING_DEFAULTS" not in names["g1"]
    assert read(tmp_path, "gateway") == {"RYZ_MODEL_ALIASES": "small-*=demo,mini=demo"}
    assert not (tmp_path / "plan" / "more.env").exists(), "which model would another group serve?"


def _groups(folder: Path) -> int:
    """How many groups the file has here, which depends on the cores."""
    with pytest.raises(CommandError, match="groups, and there are 64 worker containers") as refused:
        from_file(folder, TWO, "--containers", "64")
    return int(str(refused.value).partition("has ")[2].split()[0])


def test_so_many_containers_as_groups_are_asked_for(tmp_path: Path) -> None:
    text = '[[models]]\nsource = "demo"\ngroups = 3\n'
    with pytest.raises(CommandError, match=r"has 3 groups, and there are 2 .*RYZ_GROUPS=3") as refused:
        from_file(tmp_path, text)
    assert refused.value.exit_code == 2
    assert not list((tmp_path / "plan").iterdir()), "no worker starts with half a plan"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('load = "demand"', r"models.toml:3: demo: in Compose all groups run .* leave `load` out"),
        (
            "sleep_after_s = 60",
            r"models.toml:3: demo: in Compose all groups run .* leave `sleep_after_s` out",
        ),
        ('adapters = [{ name = "fr", source = "." }]', r"models.toml:3: demo: in Compose nothing registers"),
        ("cores = 1", r"models.toml:3: demo: in Compose RYZ_CPUSET reserves cores"),
        ('remote = "http://vllm:8000"', r"models.toml:3: demo: in Compose a group in front of a server"),
        ("grups = 2", r"models.toml:3: demo: `grups` is no field of a model; did you mean `groups`\?"),
        ('draft_model = "/etc"', r"models.toml:3: demo: "),
    ],
)
def test_what_a_stack_in_compose_cannot_do_is_one_sentence_with_its_line(
    tmp_path: Path, line: str, says: str
) -> None:
    with pytest.raises(CommandError, match=says) as refused:
        from_file(tmp_path, f'[[models]]\nsource = "demo"\n{line}\n')
    assert refused.value.exit_code == 2
    assert not list((tmp_path / "plan").iterdir())


def test_a_model_that_workers_do_not_see_is_refused(tmp_path: Path) -> None:
    copied = tmp_path / "own"
    copied.mkdir()
    for one in demo_model().iterdir():
        (copied / one.name).write_bytes(one.read_bytes())
    with pytest.raises(CommandError, match="workers of Compose see models below /models only"):
        from_file(tmp_path, '[[models]]\nsource = "own"\n')


def test_a_setting_of_one_model_beside_a_models_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RYZ_MODEL", "demo")
    with pytest.raises(CommandError, match=r"RYZ_MODEL and .* both say what is served"):
        from_file(tmp_path, TWO)


def test_a_memory_limit_is_planned_within_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RYZ_MODEL", "demo")
    monkeypatch.setenv("RYZ_WORKER_MEMORY", "1g")
    planned(tmp_path)
    for wrong, says in (("400m", "What helps: "), ("much", "RYZ_WORKER_MEMORY=much is no size")):
        monkeypatch.setenv("RYZ_WORKER_MEMORY", wrong)
        with pytest.raises(CommandError, match=says):
            planned(tmp_path)


def test_the_stores_that_are_counted_are_those_of_compose_yaml() -> None:
    bounds = [BASE[name]["command"] for name in ("redis", "redis-kv")]
    assert [command[command.index("--maxmemory") + 1] for command in bounds] == ["512mb", "512mb"]
    assert STORES_BYTES == 2 * 512 * 2**20


def test_neither_the_limit_nor_the_kernels_of_the_commands_own_container_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemAvailable: {8 * 2**20} kB\n")
    own = cgroup_memory.CgroupMemory(limit=2**30, used=0, file_cache=0)
    monkeypatch.setattr(cores_and_memory, "MEMINFO", meminfo)
    monkeypatch.setattr(cores_and_memory, "limited_cgroups", lambda: [own])
    monkeypatch.setattr(build, "find", lambda _: None)
    assert cores_and_memory.available_bytes() == 2**30
    stores = int(STORES_BYTES * STORE_OVERHEAD)
    assert container_facts(2).free_bytes == 8 * 2**30 - stores
    limited = container_facts(2, 5 * 2**28)
    assert limited.room_bytes == pytest.approx(2 * 2**30 / 1.25, abs=2)
    assert container_facts(2).kernels == bool(build.targets())
