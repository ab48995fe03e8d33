"""Models of a file that servers of others compute: their settings, their plan, their mistakes."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.__main__ import app
from cli.stack.fleet.check import checked_models
from cli.stack.fleet.declare import declare
from cli.stack.group_plan import model_settings
from cli.stack.machine import settle_sizing
from cli.stack.model_dir import demo_model
from cli.stack.options import UpOptions
from tests.unit.cli.fleet.test_cli_models_file import mistakes, write

SERVER = "http://10.0.0.5:8000"


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A model's directory without its weights."""
    folder = tmp_path / "qwen"
    shutil.copytree(demo_model(), folder, ignore=shutil.ignore_patterns("*.safetensors"))
    return folder


@pytest.fixture(autouse=True)
def _on_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RYZ_DEVICE", raising=False)


def test_its_leaders_get_the_server_and_its_key(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "key").write_text("secret")
    file = write(tmp_path, f"""
        [[models]]
        source = "qwen"
        name = "big"
        remote = "{SERVER}"
        remote_model = "Qwen/Qwen3"
        key_file = "key"
        groups = 2
    """)  # fmt: skip
    options = UpOptions(models=file)
    declared = declare(options, {})
    models = checked_models(options, declared, pull=False)
    settled = settle_sizing(options, models, declared)
    (model,) = settled.models
    assert (model.entry.groups, model.entry.tensor_parallel, settled.sizings) == (2, 1, ())
    assert "big: 2 groups in front of 10.0.0.5:8000, which computes it" in settled.text
    own = model_settings(model, {})
    names = ("ENGINE", "MODEL", "MODEL_NAME", "REMOTE_URL", "REMOTE_MODEL", "REMOTE_KEY_FILE")
    assert [own[f"RYZ_{name}"] for name in names] == [
        "remote", str(tokenizer), "big", SERVER, "Qwen/Qwen3", str(tmp_path / "key")
    ]  # fmt: skip


def test_the_plan_shows_it_with_no_memory_beside_models_that_are_computed_here(
    tmp_path: Path, tokenizer: Path
) -> None:
    alone = write(tmp_path, '[[models]]\nsource = "demo"\n')
    plan = ["models", "plan", str(alone), "--json"]
    before = json.loads(CliRunner().invoke(app, plan, catch_exceptions=False).stdout)
    entry = f'[[models]]\nsource = "{tokenizer}"\nname = "big"\nremote = "{SERVER}"\n'
    both = write(tmp_path, f'{entry}[[models]]\nsource = "demo"\n')
    found = json.loads(CliRunner().invoke(app, plan, catch_exceptions=False).stdout)
    big, demo = found["models"]
    assert (big["name"], big["groups"], big["remote"]) == ("big", 1, SERVER)
    assert {big[field] for field in ("bytes", "weights_bytes", "kv_bytes", "process_bytes", "ranks")} == {0}
    assert demo["kv_cache_tokens"] == before["models"][0]["kv_cache_tokens"]
    assert found["total"]["bytes"] == demo["bytes"]
    table = CliRunner().invoke(app, ["models", "plan", str(both)], catch_exceptions=False).stdout
    assert "big: 1 group in front of 10.0.0.5:8000" in table
    only = write(tmp_path, entry)
    assert CliRunner().invoke(app, ["models", "plan", str(only)], catch_exceptions=False).exit_code == 0


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (f'remote = "{SERVER}"\nprecision = "int8"', "`precision` is for models that are computed here"),
        (f'remote = "{SERVER}"\nload = "demand"', "`load` is for models that are computed here"),
        ('remote_model = "x"', "`remote_model` is of a server that computes the model"),
        ('remote = "10.0.0.5:8000"', "must look like http://host:port"),
        ('remote = "http://me:word@host"', "has a user or password in it"),
        (f'remote = "{SERVER}"\nkey_file = "nowhere"', "there is no file"),
    ],
)
def test_mistakes_are_said_with_their_lines(tmp_path: Path, tokenizer: Path, fields: str, said: str) -> None:
    (found,) = mistakes(write(tmp_path, f'[[models]]\nsource = "{tokenizer}"\n{fields}\n'))
    assert said in found
    assert found[0].isdigit()


def test_beside_models_that_come_and_go_it_is_refused(tmp_path: Path, tokenizer: Path) -> None:
    entry = f'[[models]]\nsource = "{tokenizer}"\nname = "big"\nremote = "{SERVER}"\n'
    file = write(tmp_path, f'{entry}[[models]]\nsource = "demo"\nload = "demand"\n')
    shown = CliRunner().invoke(app, ["models", "plan", str(file)])
    assert "ryz worker --remote" in str(shown.exception)
