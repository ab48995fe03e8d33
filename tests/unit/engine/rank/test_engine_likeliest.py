"""Steps whose tokens are the likeliest ones: chosen where the logits are, they are those of the sampler."""

from pathlib import Path

import msgspec
import pytest
import torch

from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.collectives.base import SingleRank
from services.worker.engine.config.read_config import read_config
from services.worker.engine.plain.compute import PlainCompute
from services.worker.engine.plain.model import Decoder
from services.worker.engine.plain.plain_cache import KVCache
from services.worker.engine.rank.runner import Runner
from services.worker.engine.sampling.sampler import NOT_FINITE
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.plan import Sampled, StepPlan
from services.worker.rank_protocol.sliding_pool import PoolSizes
from tests.kits.engine.rank_threads import GREEDY, Blocks, new_sequence

PROMPTS = ([5, 9, 2, 77, 140] * 8, [3, 1, 4])


def compute(model: Path, *, on_device: bool) -> PlainCompute:
    shape = read_config(model)
    with open_checkpoint(model) as checkpoint:
        made = PlainCompute(
            Decoder(checkpoint, shape, SingleRank()), KVCache(shape, PoolSizes(64), 0, 1), tiled=True
        )
    assert made.likeliest is None  # on a CPU the logits are where the sampler is
    if on_device:
        made.likeliest = made.find_likeliest
    return made


def sampled(made: PlainCompute, samplings: list[EngineSampling], steps: int = 4) -> list[list[Sampled]]:
    """Of a step with all prompts, and of decodes after it."""
    runner, blocks = Runner(made), Blocks(64)
    admit = [new_sequence(i, PROMPTS[i], sampling) for i, sampling in enumerate(samplings)]
    chunks = [blocks.chunk(i, 0, PROMPTS[i]) for i in range(len(samplings))]
    found = [runner.run_step(StepPlan(step_id=0, admit=admit, chunks=chunks)).sampled]
    for step in range(steps):
        chunks = [
            blocks.chunk(i, len(PROMPTS[i]) + step, [found[-1][i].token_id]) for i in range(len(samplings))
        ]
        found.append(runner.run_step(StepPlan(step_id=step + 1, chunks=chunks)).sampled)
    return found


def test_greedy_tokens_are_those_of_the_sampler(model: Path) -> None:
    made = compute(model, on_device=True)
    made.forward = None  # type: ignore[assignment, method-assign]  # it is not needed
    assert sampled(made, [GREEDY, GREEDY]) == sampled(compute(model, on_device=False), [GREEDY, GREEDY])


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.8, "seed": 3},
        {"logprobs": 2},
        {"min_tokens": 9, "stop_token_ids": list(range(100))},
        {"logit_bias": {7: 50.0}},
        {"presence_penalty": 1.5},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_steps_with_a_row_that_needs_its_logits_are_sampled_as_ever(
    model: Path, changes: dict[str, object]
) -> None:
    samplings = [GREEDY, msgspec.structs.replace(GREEDY, **changes)]
    made = compute(model, on_device=True)
    assert sampled(made, samplings) == sampled(compute(model, on_device=False), samplings)


def test_a_row_without_finite_logits_ends_only_its_sequence(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, ordinary = compute(model, on_device=True), PlainCompute.logits_on_device

    def broken(*arguments: object) -> torch.Tensor | None:
        logits = ordinary(*arguments)  # type: ignore[arg-type]
        assert logits is not None
        logits[1, 7] = torch.nan
        return logits

    monkeypatch.setattr(PlainCompute, "logits_on_device", broken)
    ((fine, bad),) = sampled(made, [GREEDY, GREEDY], steps=0)
    assert (fine.error, bad.error) == ("", NOT_FINITE)
