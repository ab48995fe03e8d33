"""`ryz models show` tells what is unusual about a model's chat template and about what ends its answers."""

import io
import json
from pathlib import Path

from rich.console import Console
from typer.testing import CliRunner

from cli.__main__ import app
from cli.models.facts import model_facts
from tests.kits.templates.template_shapes import template_source

PARTS = "chat template: it takes parts as the content of: assistant, system, user"


def set_template(demo_copy: Path, source: str | None) -> None:
    content = json.loads((demo_copy / "tokenizer_config.json").read_text())
    (demo_copy / "tokenizer_config.json").write_text(json.dumps(content | {"chat_template": source}))


def test_the_demo_model_has_no_findings(demo_copy: Path) -> None:
    assert model_facts("demo", demo_copy).findings == []


def test_findings_of_a_template_are_shown(demo_copy: Path) -> None:
    set_template(demo_copy, template_source("llama_guard3"))
    shown = CliRunner().invoke(app, ["models", "show", str(demo_copy), "--json"])
    assert json.loads(shown.output)["findings"] == [PARTS]
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(model_facts(str(demo_copy), demo_copy).table())
    assert any(line.startswith("findings") and PARTS in line for line in console.export_text().splitlines())


def test_texts_that_would_be_lost_are_findings(demo_copy: Path) -> None:
    set_template(demo_copy, "{{ messages[-1].content }}")
    found = model_facts(str(demo_copy), demo_copy).findings
    assert (
        "chat template: it drops the first message of the user, answers: requests with that are refused"
        in found
    )


def test_a_model_without_a_template_and_without_ends(demo_copy: Path) -> None:
    set_template(demo_copy, None)
    for name in ("config.json", "generation_config.json"):
        content = json.loads((demo_copy / name).read_text())
        (demo_copy / name).write_text(json.dumps(content | {"eos_token_id": None}))
    content = json.loads((demo_copy / "tokenizer_config.json").read_text())
    (demo_copy / "tokenizer_config.json").write_text(json.dumps(content | {"eos_token": None}))
    assert model_facts(str(demo_copy), demo_copy).findings == [
        "there is no chat template: it completes texts and does not chat",
        "no file names a token that ends an answer: answers end at `max_tokens`",
    ]
