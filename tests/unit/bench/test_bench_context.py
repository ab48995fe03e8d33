"""`ryz bench context` with the demo model: its rows, that losses are those of the settings, and refusals."""

import math

import pytest
import torch
from typer.testing import CliRunner

from benchmarks.context.context import measure, num_steps
from benchmarks.engine_plans import ContextPlan
from benchmarks.quality.scored_texts import text_windows
from cli.bench.commands import app
from cli.stack.model_dir import demo_model
from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.config.read_config import read_config
from services.worker.engine.native.build import targets
from services.worker.engine.plain.reference import ReferenceDecoder
from services.worker.model_files.load_model import load_model
from services.worker.rank_protocol.page_policy import PagePolicy


@pytest.mark.skipif(not targets(), reason="the kernels are for x86-64 with AVX2")
def test_losses_are_those_of_the_oracle() -> None:
    model, progress = demo_model(), list[str]()
    policies = ["window=4096", "window=16,sinks=16"]
    plan = ContextPlan(
        model=model, precision="fp32", contexts=(100, 40), tokens=10, threads=1, attention=policies
    )
    result = measure(plan, progress.append)
    assert len(progress) == num_steps(plan)
    rows = result["rows"]
    assert [(row["context"], row["case"]) for row in rows] == [
        (context, case) for context in (40, 100) for case in ("exact", "fp8 KV", *policies)
    ]
    (text,) = text_windows(load_model(model, "test"), 111, 111)
    for row, pages in ((rows[4], None), (rows[6], None), (rows[7], PagePolicy(1, 1))):
        with open_checkpoint(model) as checkpoint:
            logits = ReferenceDecoder(checkpoint, read_config(model), pages).logits(text[:-1])
        loss = torch.nn.functional.cross_entropy(logits[100:], torch.tensor(text[101:]))
        assert math.log(row["perplexity"]) == pytest.approx(float(loss), abs=1e-4)
    assert rows[6]["perplexity_change"] == 0
    assert abs(rows[5]["perplexity_change"]) > 0
    assert all(row["token_ms"] > 0 and row["kv_bytes"] > 0 for row in rows)
    assert rows[4]["kv_bytes"] > 2 * rows[0]["kv_bytes"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--attention", "sinks=3"], "must be `full`, or a window"),
        (["--attention", "full"], "measured in any case"),
        (["--contexts", "100000000"], "--contexts"),
    ],
)
def test_what_cannot_be_measured_is_refused(options: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["context", "--model", "demo", *options])
    assert result.exit_code != 0
    assert said in " ".join((result.output + str(result.exception)).split())
