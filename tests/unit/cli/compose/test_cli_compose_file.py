"""`ryz models plan --compose`: the containers of a models file beside those of `compose.yaml`."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from cli.__main__ import app
from cli.console import CommandError
from cli.stack.compose.container_facts import STORES_BYTES, container_facts
from cli.stack.memory_needs import STORE_OVERHEAD
from cli.stack.model_dir import demo_model
from services.worker.engine.native import build
from shared.host import cgroup_memory, cores_and_memory

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
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RYZ_DEVICE", "RYZ_MODEL", "RYZ_MODEL_ALIASES"):
        monkeypatch.delenv(name, raising=False)


def planned(file: Path, *options: str) -> str:
    """Runs the command as a shell does."""
    done = CliRunner().invoke(app, ["models", "plan", str(file), *options], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def services(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(planned(file, "--compose"))["services"]
    return found


def written(folder: Path, text: str) -> Path:
    file = folder / "models.toml"
    file.write_text(text)
    return file


def test_each_group_is_a_container_with_what_the_plan_says_of_its_model(tmp_path: Path) -> None:
    file = written(tmp_path, TWO)
    found, plan = services(file), json.loads(planned(file, "--json"))
    of_groups = [row for row in plan["models"] for _ in range(row["groups"])]
    workers = [name for name in found if name.startswith("worker")]
    assert workers == [f"worker-g{number}" for number in range(len(of_groups))]
    for number, row in enumerate(of_groups):
        env = found[f"worker-g{number}"]["environment"]
        assert env["RYZ_GROUP"] == f"g{number}"
        assert (env["RYZ_MODEL_NAME"], env["RYZ_MODEL"]) == (row["name"], "/srv/models/demo")
        for setting in ("tensor_parallel", "threads", "kv_cache_tokens"):
            assert env[f"RYZ_{setting.upper()}"] == str(row[setting])
        assert env.get("RYZ_SAMPLING_DEFAULTS") == ("temperature=0.0" if row["name"] == "two" else None)
        assert "RYZ_PACKED_DIR" not in env, "containers share no directory that workers may write"
        limit = int(found[f"worker-g{number}"]["mem_limit"].removeprefix("${RYZ_WORKER_MEMORY:-")[:-2])
        assert limit * 2**20 > row["bytes"] / row["groups"]


def test_a_worker_that_compose_yaml_has_not_is_like_those_that_it_has(tmp_path: Path) -> None:
    found = services(written(tmp_path, TWO))
    base, new = BASE["worker-g1"], found["worker-g2"]
    assert set(new) == set(base)
    own = {"environment", "mem_limit"}
    assert {name: new[name] for name in new if name not in own} == {
        name: base[name] for name in base if name not in own
    }
    assert set(new["environment"]) >= set(base["environment"])
    shared = set(base["environment"]) - set(found["worker-g1"]["environment"])
    assert {name: new["environment"][name] for name in shared} == {
        name: base["environment"][name] for name in shared
    }
    assert set(found["worker-g0"]) == own, "lists of both files would be joined"


def test_the_gateway_knows_the_aliases_and_waits_for_all_groups(tmp_path: Path) -> None:
    gateway = services(written(tmp_path, TWO))["gateway"]
    assert gateway == {
        "environment": {"RYZ_MODEL_ALIASES": "small-*=demo,mini=demo"},
        "depends_on": {"worker-g2": {"condition": "service_healthy"}},
    }
    assert {"worker-g0", "worker-g1"} <= set(BASE["gateway"]["depends_on"])


def test_one_group_leaves_the_second_container_out(tmp_path: Path) -> None:
    found = services(written(tmp_path, '[[models]]\nsource = "demo"\ngroups = 1\n'))
    assert found["worker-g1"] == {"scale": 0}
    assert "gateway" not in found


def test_a_model_by_its_path_is_mounted_where_it_is(tmp_path: Path) -> None:
    copied = tmp_path / "cost$5"
    copied.mkdir()
    for one in demo_model().iterdir():
        (copied / one.name).write_bytes(one.read_bytes())
    found = services(written(tmp_path, '[[models]]\nsource = "cost$5"\nname = "own"\n'))
    for worker in ("worker-g0", "worker-g1"):
        escaped = str(copied).replace("$", "$$")  # Compose would replace `$5`
        assert found[worker]["environment"]["RYZ_MODEL"] == escaped
        assert found[worker]["volumes"] == [*BASE[worker]["volumes"], f"{escaped}:{escaped}:ro"]
    (copied / "notes").symlink_to(tmp_path / "models.toml")
    with pytest.raises(CommandError, match=r"models.toml:2: own: .*links to files outside of it"):
        planned(tmp_path / "models.toml", "--compose")


def test_a_pulled_model_is_in_the_volume_and_pulled_before_workers_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RYZ_MODELS_DIR", str(tmp_path / "here"))
    monkeypatch.setattr(
        "cli.models.resolve.pulled", lambda *_: _stand_in(tmp_path / "here" / "hf" / "a" / "b")
    )
    found = services(written(tmp_path, '[[models]]\nsource = "hf:a/b"\n[[models]]\nsource = "demo"\n'))
    assert found["model"] == {"command": ["ryz models pull hf:a/b"]}
    assert found["worker-g0"]["environment"]["RYZ_MODEL"] == "/models/hf/a/b"
    assert "volumes" not in found["worker-g0"]
    assert BASE["model"]["entrypoint"] == ["sh", "-c"]


def _stand_in(path: Path) -> Path:
    """The demo model as if it had been pulled."""
    path.mkdir(parents=True, exist_ok=True)
    for one in demo_model().iterdir():
        (path / one.name).write_bytes(one.read_bytes())
    return path


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('load = "demand"', r"models.toml:3: demo: in Compose all groups run .* leave `load` out"),
        (
            "sleep_after_s = 60",
            r"models.toml:3: demo: in Compose all groups run .* leave `sleep_after_s` out",
        ),
        (
            'adapters = [{ name = "fr", source = "." }]',
            r"models.toml:3: demo: in Compose nothing registers adapters .* leave `adapters` out",
        ),
        ("grups = 2", r"models.toml:3: demo: `grups` is no field of a model; did you mean `groups`\?"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_line_and_nothing_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, says: str
) -> None:
    file = written(tmp_path, f'[[models]]\nsource = "demo"\n{line}\n')
    done = CliRunner().invoke(app, ["models", "plan", str(file), "--compose"])
    assert isinstance(done.exception, CommandError)
    assert done.exception.exit_code == 2
    with pytest.raises(CommandError, match=says):
        raise done.exception
    assert done.stdout == ""


def test_a_model_that_would_be_fetched_is_no_further_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RYZ_MODELS_DIR", str(tmp_path / "none"))
    file = written(tmp_path, '[[models]]\nsource = "smollm2-135m"\ngrups = 2\n')
    with pytest.raises(CommandError, match=r"^[^\n]*models.toml:3: smollm2-135m: `grups` is no [^\n]*$"):
        planned(file, "--compose", "--pull")
    with pytest.raises(CommandError, match=r"(?s)has 2 mistakes.*:2: smollm2-135m: The model .* is not here"):
        planned(file, "--compose")
    assert not (tmp_path / "none").exists(), "nothing was fetched"


def test_two_forms_of_one_plan_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="leave out one of the two"):
        planned(written(tmp_path, TWO), "--compose", "--json")


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
    assert container_facts(0).free_bytes == 8 * 2**30 - stores
    assert container_facts(4).free_bytes == 4 * 2**30 - stores
    assert container_facts(0).kernels == bool(build.targets())
