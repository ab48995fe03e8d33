"""`ryz bench mixed` with the demo model and real ranks: its rows, and what it refuses."""

from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.engine.mixed_load import measure
from benchmarks.engine_plans import MixedPlan
from cli.bench.commands import app
from cli.stack.model_dir import demo_model
from tests.kits.bench.long_enough import long_enough
from tests.kits.engine.shared_fork_server import sharing


@pytest.fixture(scope="module", autouse=True)
def shared_fork_server() -> Iterator[None]:
    with sharing():
        yield


@pytest.mark.alone
async def test_every_target_is_measured() -> None:
    progress: list[str] = []

    async def mixed(seconds: float) -> dict[str, Any]:
        progress.clear()
        plan = MixedPlan(
            model=demo_model(),
            precision="fp32",
            threads=1,
            streams=2,
            prompt=200,
            interval=seconds / 5,
            seconds=seconds,
            targets=(0, 1),
            rounds=1,
        )
        return await measure(plan, progress.append)

    report = await long_enough(mixed, 1.0)
    free, limited = report["rows"]
    assert progress == ["round 1, no target", "round 1, target 1 ms"]
    assert (free["target_ms"], limited["target_ms"]) == (0, 1)
    assert free["cut_steps"] == 0
    assert limited["cut_steps"] > 0
    for row in (free, limited):
        assert 1 <= row["answered"] <= row["prompts"] <= 6
        assert 0 < row["itl_p50_ms"] <= row["itl_p99_ms"]
        assert row["worst_second_p99_ms"] > 0
        assert 0 <= row["seconds_within"] <= 1
        assert row["ttft_p50_ms"] > 0


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--prompt", "100000"], "more than the model's context"),
        (["--targets", "-1"], "numbers from 0 to 60000"),
    ],
)
def test_what_cannot_be_measured_is_refused(words: list[str], why: str) -> None:
    found = CliRunner().invoke(app, ["mixed", "--model", str(demo_model()), *words], env={"COLUMNS": "200"})
    assert found.exit_code != 0
    assert why in found.output + str(found.exception)
