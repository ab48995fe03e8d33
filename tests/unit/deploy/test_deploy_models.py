"""`deploy/configure.py models` has `ryz` plan a models file in its container, for Compose to read."""

import stat
import subprocess
from pathlib import Path

import pytest
import yaml

from cli.stack.fleet.entry import ModelEntry, ServedModel
from cli.stack.group_plan import model_settings
from deploy import configure
from tests.kits.deploy.script import run_configure, stand_in_docker

SAYS_PLAN = """case "$*" in
  "compose version") ;;
  *) echo "services: {}" ;;
esac"""
REFUSES = """case "$*" in
  "compose version") ;;
  *) echo "models.toml:3: no field" >&2; exit 2 ;;
esac"""


def planned(folder: Path, script: str = SAYS_PLAN, *more: str) -> "subprocess.CompletedProcess[str]":
    models = folder / "given" / "models.toml"
    models.parent.mkdir(exist_ok=True)
    return run_configure(folder / ".env", "models", str(models), *more, path=stand_in_docker(folder, script))


def test_compose_reads_the_groups_from_then_on(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("A=1\n")
    for _ in range(2):  # a second time changes no setting
        done = planned(tmp_path, SAYS_PLAN, "--memory", "6")
        assert done.returncode == 0, done.stderr
        values = configure.assigned((tmp_path / ".env").read_text())
        assert values == {"A": "1", "COMPOSE_FILE": "compose.yaml:compose.models.yaml"}
    assert yaml.safe_load((tmp_path / "compose.models.yaml").read_text()) == {"services": {}}
    assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == 0o600
    given = tmp_path / "given"
    call = (tmp_path / "calls").read_text().splitlines()[-1]
    assert call.startswith(
        f"compose -f {configure.COMPOSE} run --rm -T -v {given}:{given}:ro ryz models plan"
    )
    assert call.endswith(f"{given}/models.toml --pull --compose --memory 6")


def test_files_that_compose_reads_already_stay(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("COMPOSE_FILE=compose.yaml:deploy/compose.persistent.yaml\n")
    assert planned(tmp_path).returncode == 0
    files = configure.assigned((tmp_path / ".env").read_text())["COMPOSE_FILE"]
    assert files == "compose.yaml:deploy/compose.persistent.yaml:compose.models.yaml"


def test_a_mistake_is_shown_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("A=1\n")
    (tmp_path / "compose.models.yaml").write_text("services: {worker-g0: {}}\n")
    done = planned(tmp_path, REFUSES)
    assert done.returncode == 2
    assert "models.toml:3: no field" in done.stderr
    assert (tmp_path / ".env").read_text() == "A=1\n"
    assert (tmp_path / "compose.models.yaml").read_text() == "services: {worker-g0: {}}\n"


@pytest.mark.parametrize("name", configure.OF_ONE_MODEL)
def test_a_setting_of_one_model_beside_the_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / ".env").write_text(f"{name}=1\n")
    done = planned(tmp_path)
    assert done.returncode == 2
    assert f"{name} and the models file both say what is served; delete its line in .env" in done.stderr
    assert not (tmp_path / "compose.models.yaml").exists()


def test_these_are_the_settings_of_compose_yaml_that_a_models_file_replaces(tmp_path: Path) -> None:
    base = yaml.safe_load(configure.COMPOSE.read_text())["services"]["worker-g0"]["environment"]
    entry = ModelEntry(source="demo", name="demo", kv_cache_tokens=1, sampling="openai")
    written = model_settings(ServedModel(entry, tmp_path, draft=tmp_path), {})
    assert set(configure.OF_ONE_MODEL) == set(base) & set(written)


def test_without_a_file_or_compose_it_says_so(tmp_path: Path) -> None:
    done = run_configure(tmp_path / ".env", "models", path=stand_in_docker(tmp_path, SAYS_PLAN))
    assert "`models` needs a models file" in done.stderr
    folder = tmp_path / "bin"
    folder.mkdir()
    path = stand_in_docker(folder, "exit 1").partition(":")[0]
    (folder / "echo").symlink_to("/bin/true")
    done = run_configure(tmp_path / ".env", "models", "m.toml", path=path)
    assert done.returncode == 2
    assert "neither `docker compose` nor `docker-compose`" in done.stderr
