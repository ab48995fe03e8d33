"""Faults of tokenizers, templates and end tokens: `ryz models show` tells them, `ryz up` before it starts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.console import CommandError
from cli.models.facts import model_facts
from cli.stack.model_dir import find_model


def changed(file: str, **fields: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        content = json.loads((path / file).read_text())
        (path / file).write_text(json.dumps(content | fields))

    return change


def cut(path: Path) -> None:
    text = (path / "tokenizer.json").read_text()
    (path / "tokenizer.json").write_text(text[: len(text) // 2])


def smaller_embedding(path: Path) -> None:
    changed("config.json", vocab_size=2000)(path)


FAULTS = [
    (cut, "tokenizer.json is not a tokenizer that can be read"),
    (smaller_embedding, "the embedding has 2000 rows, and 48 tokens"),
    (changed("tokenizer_config.json", chat_template="{% if %}"), "chat template is broken"),
    (changed("generation_config.json", eos_token_id=10**6), "must be the id of one of the 2048 tokens"),
    (changed("config.json", eos_token_id=[None]), "`eos_token_id` must be a token id"),
]


@pytest.mark.parametrize(("change", "fault"), FAULTS)
def test_a_fault_is_told_before_anything_starts(
    demo_copy: Path, change: Callable[[Path], None], fault: str
) -> None:
    assert not model_facts(str(demo_copy), demo_copy).refused
    assert find_model(demo_copy, "torch", 1) == demo_copy.resolve()
    change(demo_copy)
    facts = model_facts(str(demo_copy), demo_copy)
    assert fault in facts.refused
    assert str(demo_copy) in facts.refused
    for engine in ("torch", "null"):  # both take tokens and template from the files
        with pytest.raises(CommandError, match="This model cannot be served: ") as caught:
            find_model(demo_copy, engine, 1)
        assert fault in str(caught.value)
        assert caught.value.exit_code == 2
