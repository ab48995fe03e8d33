"""`ryz bench adapters` with the demo model: its rows, its adapters, and what it refuses."""

import pytest
from typer.testing import CliRunner

from benchmarks.engine.adapters import measure, num_steps, random_adapter
from benchmarks.engine_plans import AdaptersPlan
from cli.bench.commands import app
from cli.stack.model_dir import demo_model
from services.worker.engine.config.read_config import read_config
from services.worker.engine.native.build import targets


@pytest.mark.skipif(not targets(), reason="the kernels are for x86-64 with AVX2")
def test_every_combination_is_a_row() -> None:
    plan = AdaptersPlan(
        model=demo_model(),
        precision=("fp32", "int8"),
        ranks=(2, 9),
        batches=(1, 3),
        threads=1,
        prompt=5,
        turns=1,
    )
    steps: list[str] = []
    report = measure(plan, steps.append)
    assert len(steps) == num_steps(plan)
    rows = report["rows"]
    assert [(row["precision"], row["rank"], row["batch"]) for row in rows] == [
        (precision, rank, batch)
        for precision in plan.precision
        for rank in plan.ranks
        for batch in plan.batches
    ]
    assert all(row["different_to_base"] > 0 and row["tokens_per_s"] > 0 for row in rows)
    assert rows[0]["adapter_bytes"] < rows[2]["adapter_bytes"]
    assert rows[4]["adapter_bytes"] < rows[0]["adapter_bytes"]  # bf16


def test_adapters_have_the_matrices_that_were_asked_for() -> None:
    config = read_config(demo_model())
    adapter = random_adapter(config, ["q", "down"], 3, seed=1)
    assert {module for _, module in adapter.layers} == {"self_attn.q_proj", "mlp.down_proj"}
    assert len(adapter.layers) == 2 * config.num_layers
    assert all(pair.down.shape[0] == pair.up.shape[1] == 3 for pair in adapter.layers.values())


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--targets", "router"], "router"), (["--turns", "1000", "--prompt", "100000"], "context")],
)
def test_what_cannot_be_measured_is_refused(options: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["adapters", "--model", "demo", *options])
    assert result.exit_code != 0
    assert said in " ".join((result.output + str(result.exception)).split())
