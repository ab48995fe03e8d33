"""`ryz models` and `--model`: what names mean, and what the commands say."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.__main__ import app
from cli.console import CommandError
from cli.models.catalogue import catalogue
from cli.models.names import HubName, hub_name, served_name
from cli.models.resolve import resolve_model
from cli.stack.memory_needs import (
    process_bytes,
)
from cli.stack.model_dir import demo_model, find_model
from cli.stack.options import as_given
from cli.stack.sizing import (
    LEAST_KV_TOKENS,
)
from services.worker.engine.checkpoint.model_size import ModelSize
from services.worker.gguf import config as gguf_config
from services.worker.model_files.sampling_defaults import parse_sampling


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RYZ_MODELS_DIR", str(tmp_path / "models"))
    return tmp_path / "models"


def ryz(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["models", *arguments])
    if isinstance(result.exception, CommandError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_every_entry_of_the_catalogue_is_whole() -> None:
    for name, model in catalogue().items():
        assert name == model.name
        assert model.memory > 0
        assert name == "demo" or model.file == f"{name}.gguf"
        assert name == "demo" or bool(model.wheels) != bool(model.hub)
        assert model.hub or sum(wheel.member_size for wheel in model.wheels) == model.size
        assert all(len(wheel.sha256) == 64 for wheel in model.wheels)


def test_the_list_has_the_catalogue_and_no_model_yet(models: Path) -> None:
    listed = json.loads(ryz("list", "--json"))
    assert listed["directory"] == str(models)
    assert {model["name"] for model in listed["models"]} == catalogue().keys()
    assert [model["name"] for model in listed["models"] if model["path"]] == ["demo"]


def test_the_demo_is_shown_with_its_memory() -> None:
    facts = json.loads(ryz("show", "demo", "--json"))
    assert facts["architecture"] == "LlamaForCausalLM"
    assert facts["parameters"] == 2_164_416
    assert facts["context"] == 2048
    assert facts["flags"].startswith("--groups ")
    assert facts["memory"]["int8"]["weights"] < facts["memory"]["fp32"]["weights"]
    assert "model.safetensors" in ryz("show", str(demo_model()))


def test_defaults_of_sampling_are_shown_with_their_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = json.loads(ryz("show", "demo", "--json"))["sampling"]
    assert shown["temperature"] == {"value": 0.0, "source": "the model's files"}  # `do_sample` is false
    assert shown["top_p"] == {"value": 0.95, "source": "Ryzanstein"}
    monkeypatch.setenv("RYZ_SAMPLING_DEFAULTS", "temperature=0.5")
    monkeypatch.setenv("RYZ_SAMPLING_FALLBACK", "top_p=0.7")
    text = " ".join(ryz("show", "demo").split())
    assert "temperature 0.5 (RYZ_SAMPLING_DEFAULTS), top_p 0.7 (RYZ_SAMPLING_FALLBACK)" in text
    monkeypatch.setenv("RYZ_SAMPLING_DEFAULTS", "temperature=hot")
    with pytest.raises(CommandError, match="RYZ_SAMPLING_DEFAULTS `temperature` must be a number"):
        ryz("show", "demo")


def test_what_the_catalogue_recommends_is_readable() -> None:
    assert {name for name, model in catalogue().items() if model.sampling} == {"smollm2-135m", "gemma3-270m"}
    for model in catalogue().values():
        parse_sampling(model.sampling)


def test_a_model_that_cannot_be_served_yet_is_refused_before_it_is_pulled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(gguf_config.ARCHITECTURES, "gemma3")
    with pytest.raises(
        CommandError, match=r"gemma3-270m cannot be served yet: its architecture is gemma3, and"
    ):
        find_model(Path("gemma3-270m"), "torch", 1, pull=True)


def test_the_memory_of_the_catalogue_is_what_a_group_needs() -> None:
    smollm2 = ModelSize(
        matrices=134_479_872,
        embedding=28_311_552,
        others=35_136,
        tied=True,
        stored_bytes=4,
        kv_values=11_520,
        vocabulary=49_152,
    )
    kv = LEAST_KV_TOKENS * smollm2.kv_token_bytes("int8")
    needed = process_bytes(smollm2) + smollm2.weight_bytes("int8") + kv
    assert catalogue()["smollm2-135m"].memory == pytest.approx(needed, rel=0.01)


@pytest.mark.parametrize("name", ["smollm2-135m", "hf:someone/some-model"])
def test_a_model_that_was_not_pulled_is_refused_with_the_command(name: str) -> None:
    with pytest.raises(CommandError, match=f"`ryz models pull {name}`") as caught:
        resolve_model(name, pull=False)
    assert caught.value.exit_code == 2


def test_an_unknown_name_lists_the_catalogue() -> None:
    with pytest.raises(
        CommandError, match=r"demo, smollm2-135m, gemma3-270m, .*qwen3-8b\. Give a path"
    ) as caught:
        resolve_model("smollm3")
    assert caught.value.exit_code == 2
    with pytest.raises(CommandError, match=r"There is no model smollm3 in the catalogue, which has demo, "):
        ryz("pull", "smollm3")


def test_names_come_before_directories_unless_a_path_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve_model(as_given("demo")) == demo_model()
    assert resolve_model(as_given("./demo")) == tmp_path / "demo"
    assert find_model(as_given("demo"), "torch", 1) == demo_model()


@pytest.mark.parametrize(
    ("given", "expected", "location"),
    [
        ("hf:a/b", HubName("a", "b"), "hf/a/b"),
        ("hf:a/b.c@v1.0", HubName("a", "b.c", "v1.0"), "hf/a/b.c@v1.0"),
        ("hf:a/b@main/Q8/x.gguf", HubName("a", "b", "main", "Q8/x.gguf"), "hf-files/a/b@main/Q8/x.gguf"),
    ],
)
def test_names_on_the_hub(given: str, expected: HubName, location: str) -> None:
    assert hub_name(given) == expected
    assert str(expected) == given
    assert str(expected.directory()) == location


@pytest.mark.parametrize(
    "given",
    ["hf:a", "hf:../b", "hf:a/..", "hf:a/b/../../x.gguf", "hf:a/b/model.bin", "hf:a/b@", "hf:a//x.gguf"],
)
def test_other_names_on_the_hub_are_refused(given: str) -> None:
    with pytest.raises(CommandError, match="it has the form hf:OWNER/NAME"):
        hub_name(given)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/m/smollm2-135m.gguf", "smollm2-135m"),
        ("/m/My model (v2).Q8_0.gguf", "My-model-(v2).Q8_0"),
        ("/m/hf/a/SmolLM@main", "SmolLM"),
        ("/m/a\u202eb\n.gguf", "a-b"),
        ("/m/" + "x" * 200, "x" * 128),
        ("/m/ .gguf", "model"),
    ],
)
def test_served_names_follow_the_rule_of_names(path: str, name: str) -> None:
    assert served_name(Path(path)) == name


@pytest.mark.parametrize("variable", ["RYZ_MODEL", "RYZ_DRAFT_MODEL"])
def test_a_model_in_use_is_not_removed(models: Path, variable: str) -> None:
    models.mkdir()
    path = models / "smollm2-135m.gguf"
    path.write_bytes(b"x")
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(
        command, env=os.environ | {variable: str(path)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        server.stdout.readline()
        with pytest.raises(CommandError, match=f"in use by process {server.pid}: end its stack"):
            ryz("remove", "smollm2-135m", "--yes")
        server.communicate(b"\n")
    with pytest.raises(CommandError, match="needs `--yes`"):
        ryz("remove", "smollm2-135m")
    assert "Removed smollm2-135m" in ryz("remove", "smollm2-135m", "--yes")
    assert list(models.iterdir()) == []
    with pytest.raises(CommandError, match="is not here"):
        ryz("remove", "smollm2-135m", "--yes")
