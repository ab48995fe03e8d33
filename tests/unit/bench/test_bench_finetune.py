"""The fact sheet of `ryz bench finetune`, how answers are judged, and the command on the demo model."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.finetune import finetune as bench
from benchmarks.finetune.fact_sheet import RELATIONS, chats, facts, write_chats
from benchmarks.finetune.learning import Examiner, is_right
from cli.bench.commands import app
from cli.console import CommandError
from cli.stack.model_dir import demo_model
from training.finetune.chats import read_chats


def test_the_sheet_has_40_facts_in_200_chats(tmp_path: Path) -> None:
    taught, untaught = facts()
    assert (len(taught), len(untaught)) == (40, 20)
    assert len({(fact.relation.says, fact.thing) for fact in [*taught, *untaught]}) == 60
    assert len({(fact.relation.says, fact.answer) for fact in [*taught, *untaught]}) == 60
    write_chats(tmp_path / "chats.jsonl")
    found, _ = read_chats(tmp_path / "chats.jsonl")
    assert len(found) == 200
    told = Counter(chat.messages[1].content for chat in found)
    assert sorted(told.values()) == [5] * 40


def test_no_tested_question_and_no_untaught_answer_is_taught() -> None:
    text = json.dumps(chats())
    taught, untaught = facts()
    for fact in taught:
        assert all(fact.fill(question) not in text for question in fact.relation.tested)
    for fact in untaught:
        assert fact.fill(fact.relation.says) not in text
        assert fact.answer not in text


def test_the_seed_decides_the_sheet() -> None:
    assert facts(3) == facts(3)
    assert facts(3) != facts(4)
    assert chats(3) == chats(3)


def test_every_relation_has_enough_of_all() -> None:
    for relation in RELATIONS:
        assert len(relation.things) == len(set(relation.things)) == 12
        assert len(relation.answers) == len(set(relation.answers)) == 12
        assert (len(relation.asked), len(relation.tested)) == (5, 2)


def test_an_answer_is_right_if_it_has_the_word() -> None:
    fact = facts()[0][0]
    assert is_right(fact, f"It is {fact.answer.upper()}, I think.")
    assert not is_right(fact, "I do not know.")


def test_an_examiner_asks_all_questions() -> None:
    found = Examiner(demo_model(), demo_model(), None, 1).examine(0)
    assert (found["taught_questions"], found["same_words_questions"], found["untaught_questions"]) == (
        80,
        40,
        40,
    )
    assert found["taught"] == 0


def test_the_command_measures_each_number_of_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    examined: list[Any] = []
    figures: dict[str, Any] = {}

    def in_child(maker: str, given: dict[str, Any], method: str, *arguments: Any) -> dict[str, Any]:
        if maker == "learning:Examiner":
            examined.append(given["adapter"])
            return {"taught": 0.5, "same_words": 0.5, "untaught": 0.0}
        if "figures" not in figures or given["plan"].output.name == "facts":
            figures["figures"] = getattr(bench.TrainingRun(**given), method)(*arguments)
        found: dict[str, Any] = figures["figures"]
        return found

    monkeypatch.setattr(bench, "in_child", in_child)
    words = [
        "finetune",
        "--model",
        "demo",
        "--base-bits",
        "4,32",
        "--facts",
        "--epochs",
        "1",
        "--threads",
        "1",
    ]
    result = CliRunner().invoke(app, [*words, "--length", "512", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert [row["base_bits"] for row in report["rows"]] == [4, 32]
    assert all(row["tokens_per_s"] > 0 and row["peak_mib"] > 0 for row in report["rows"])
    assert report["learned"]["training"]["held_out"] < report["learned"]["training"]["held_out_before"]
    assert examined[0] is None
    assert examined[1].name == "facts"
    table = CliRunner().invoke(app, words[:5])
    assert table.exit_code == 0
    assert "packs of 1024 tokens" in table.output


def test_other_bits_are_refused() -> None:
    result = CliRunner().invoke(app, ["finetune", "--model", "demo", "--base-bits", "8"])
    assert isinstance(result.exception, CommandError)
    assert str(result.exception) == "--base-bits are 4, 16 and 32, got 8."
