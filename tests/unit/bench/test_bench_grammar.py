"""`ryz bench grammar` with the demo model and real ranks: its rows, and the tokens that it compares."""

from collections.abc import Iterator

import pytest

from benchmarks.engine_plans import GrammarPlan
from benchmarks.grammar.grammar import OneByOne, measure
from cli.stack.model_dir import demo_model
from services.worker.rank_protocol.step_masks import mask_of
from tests.kits.engine.shared_fork_server import sharing
from tests.kits.worker.toy_constraint import ToyConstraint


@pytest.fixture(scope="module", autouse=True)
def shared_fork_server() -> Iterator[None]:
    with sharing():
        yield


async def test_every_kind_is_measured() -> None:
    plan = GrammarPlan(
        model=demo_model(), precision="fp32", threads=1, batch=2, prompt=8, tokens=40, repeats=1
    )
    steps: list[str] = []
    report = await measure(plan, steps.append)
    assert len(steps) == plan.num_steps()
    rows = {row["kind"]: row for row in report["rows"]}
    assert list(rows) == ["free", "text", "records", "records one by one"]
    assert all(row["tokens_per_s"] > 0 for row in rows.values())
    # forced tokens come several a step
    assert rows["records"]["tokens_per_step"] > rows["records one by one"]["tokens_per_step"]
    assert rows["free"]["masks_made_ms"] < rows["text"]["masks_made_ms"]
    assert report["forced_of_one_by_one"] > 0


def test_one_by_one_gives_the_tokens_of_the_runs() -> None:
    forcing, sampling = ToyConstraint(50, [], 3), OneByOne(ToyConstraint(50, [], 3))
    runs = 0
    for _ in range(60):
        if run := forcing.forced():
            runs += 1
            forcing.accept(run)
            for token_id in run:
                assert (sampling.forced(), sampling.mask()) == ([], mask_of(token_id))
                sampling.accept([token_id])
            continue
        mask = forcing.mask()
        assert sampling.mask() == mask
        token_id = 7 if mask is None else next(i for i in range(50) if mask[i // 8] >> i % 8 & 1)
        forcing.accept([token_id])
        sampling.accept([token_id])
    assert runs > 5
