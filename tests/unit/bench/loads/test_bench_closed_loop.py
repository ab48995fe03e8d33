"""`ryz bench closed-loop` with the demo model and a real rank: its rows, their sums, and what it refuses."""

from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from benchmarks.engine.closed_loop import LoopTimes, measure, row
from benchmarks.engine.closed_loop_plan import ClosedLoopPlan
from cli.bench.commands import app
from cli.stack.model_dir import demo_model
from tests.kits.engine.shared_fork_server import sharing


@pytest.fixture(scope="module", autouse=True)
def shared_fork_server() -> Iterator[None]:
    with sharing():
        yield


async def test_a_loop_is_measured_against_its_parts() -> None:
    progress: list[str] = []
    plan = ClosedLoopPlan(model=demo_model(), precision="fp32", threads=1, requests=5, at_once=2, prompt=20,
                          tokens=6, targets=(0,), rounds=1)  # fmt: skip
    report = await measure(plan, progress.append)
    (found,) = report["rows"]
    assert progress == ["round 1, no target"]
    assert all(value > 0 for name, value in found.items() if name != "target_ms")
    assert found["share_of_sum"] == pytest.approx(found["tokens_per_s"] / found["sum_tokens_per_s"], rel=0.02)
    assert found["itl_p50_ms"] <= found["itl_p99_ms"]


def test_the_sum_is_that_of_prompts_and_of_decode_steps() -> None:
    plan = ClosedLoopPlan(model=demo_model(), requests=8, at_once=4, prompt=100, tokens=11)
    whole = LoopTimes(seconds=10.0, first=[1.0] * 8, gaps=[0.1] * 80)
    found = row(plan, prompts_s=2.0, decode_step_s=0.25, whole=whole)
    assert found["share_of_sum"] == pytest.approx(0.9)  # twice 2 s of prompts and 10 steps of 0.25 s
    assert found["tokens_per_s"] == pytest.approx(8.8)
    assert found["prefill_tokens_per_s"] == 200
    assert found["decode_tokens_per_s"] == 16
    assert (found["ttft_p50_ms"], found["itl_p50_ms"], found["itl_p99_ms"]) == (1000.0, 100.0, 100.0)


def test_what_does_not_fit_is_refused() -> None:
    words = ["closed-loop", "--model", str(demo_model()), "--prompt", "100000"]
    found = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert found.exit_code != 0
    assert "more than the model's context" in found.output + str(found.exception)
