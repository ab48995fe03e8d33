"""`ryz models show` tells what is unusual about a model's chat template and about what ends its answers."""

import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cli.__main__ import app
from cli.models.model_facts import model_facts
from cli.stack.model_dir import demo_model
from tests.kits.templates.template_shapes import template_source

PARTS = "chat template: it takes parts as the content of: assistant, system, user"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(demo_model(), tmp_path / "some"))


def set_template(model: Path, source: str | None) -> None:
    content = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(content | {"chat_template": source}))


def test_the_demo_model_has_no_findings(model: Path) -> None:
    assert model_facts("demo", model).findings == []


def test_findings_of_a_template_are_shown(model: Path) -> None:
    set_template(model, template_source("llama_guard3"))
    shown = CliRunner().invoke(app, ["models", "show", str(model), "--json"])
    assert json.loads(shown.output)["findings"] == [PARTS]
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(model_facts(str(model), model).table())
    assert any(line.startswith("findings") and PARTS in line for line in console.export_text().splitlines())


def test_texts_that_would_be_lost_are_findings(model: Path) -> None:
    set_template(model, "{{ messages[-1].content }}")
    found = model_facts(str(model), model).findings
    assert (
        "chat template: it drops the first message of the user, answers: requests with that are refused"
        in found
    )


def test_a_model_without_a_template_and_without_ends(model: Path) -> None:
    set_template(model, None)
    for name in ("config.json", "generation_config.json"):
        content = json.loads((model / name).read_text())
        (model / name).write_text(json.dumps(content | {"eos_token_id": None}))
    content = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(content | {"eos_token": None}))
    assert model_facts(str(model), model).findings == [
        "there is no chat template: it completes texts and does not chat",
        "no file names a token that ends an answer: answers end at `max_tokens`",
    ]
