"""`ryz bench speculation` with the demo model and a real rank: its rows, and what it refuses."""

from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from benchmarks.engine.speculation_load import measure, speculation_prompts
from benchmarks.engine_plans import SpeculationPlan
from cli.bench.commands import app
from cli.stack.model_dir import demo_model
from services.worker.domain.speculation import draft_budget, model_costs, speculation
from services.worker.model_files.load_model import load_model
from tests.kits.engine.shared_fork_server import sharing


@pytest.fixture(scope="module", autouse=True)
def shared_fork_server() -> Iterator[None]:
    with sharing():
        yield


async def test_tasks_and_batches_have_a_row_each_with_equal_tokens() -> None:
    plan = SpeculationPlan(
        model=demo_model(), precision="fp32", threads=1, batches=(1, 2), tokens=120, repeats=1
    )
    progress: list[str] = []
    report = await measure(plan, progress.append)
    assert progress[0] == "loading"
    assert progress[1:3] == ["copy x 1: warm-up", "copy x 1: repeat 1"]
    assert [(row["task"], row["batch"]) for row in report["rows"]] == [
        ("copy", 1), ("free", 1), ("copy", 2), ("free", 2),
    ]  # fmt: skip
    for row in report["rows"]:
        assert 0 < row["least_ratio"] <= row["ratio"]
        assert row["accepted_tokens"] <= row["draft_tokens"]
        assert row["tokens_per_step"] > 0
    assert sum(row["accepted_tokens"] for row in report["rows"]) > 0  # the demo repeats itself


async def test_a_draft_model_is_measured_beside_prompt_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculation, "START_OF_ONE", 1e9)  # a model of the same size does not pay
    for module in (draft_budget, model_costs):
        monkeypatch.setattr(module, "MOST", 1e9)
    monkeypatch.setattr(model_costs, "START", 1e9)
    demo = demo_model()
    plan = SpeculationPlan(
        model=demo, draft_model=demo, precision="fp32", threads=1, batches=(2,), tokens=60, repeats=1
    )
    progress: list[str] = []
    report = await measure(plan, progress.append)
    assert progress[:2] == ["loading", "loading the draft model"]
    rows = report["rows"]
    assert [(row["task"], row["guesses"]) for row in rows] == [
        ("copy", "lookup"), ("copy", "draft"), ("free", "lookup"), ("free", "draft"),
    ]  # fmt: skip
    for row in rows:
        assert row["model_accepted_tokens"] <= row["model_draft_tokens"] <= row["draft_tokens"]
        if row["guesses"] == "lookup":
            assert row["model_draft_tokens"] == 0
    assert sum(row["model_draft_tokens"] for row in rows) > 0


def test_prompts_of_a_batch_differ() -> None:
    model = load_model(demo_model())
    prompts = speculation_prompts(model, "copy", 6)
    assert len({tuple(ids) for ids in prompts}) == 6


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--tokens", "100000"], "more than the model's context"),
        (["--draft-tokens", "33"], "32"),
        (["--batches", "0"], "numbers from 1 to 64"),
    ],
)
def test_what_cannot_be_measured_is_refused(words: list[str], why: str) -> None:
    given = ["speculation", "--model", str(demo_model()), *words]
    found = CliRunner().invoke(app, given, env={"COLUMNS": "200"})
    assert found.exit_code != 0
    assert why in found.output + str(found.exception)
