"""Embeddings and log probabilities of prompts against transformers, on one to three ranks."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.collectives.base import Collectives
from services.worker.engine.config.read_config import read_config
from services.worker.engine.native.build import targets
from services.worker.engine.rank.runner import Runner
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.plan import NewSequence, StepPlan, StepResult
from shared.messages import EmbeddingOptions
from tests.kits.engine.rank_threads import (
    COMPUTES,
    Blocks,
    ComputeFactory,
    new_sequence,
    run_threads,
)
from tests.kits.engine.small_models import small_model

PROMPT = [(17 * i * i + 5 * i) % 203 for i in range(700)]  # longer than a pass of the kernels
ANOTHER = PROMPT[300:340]
CHUNKS = (1, 250, 449)


model = small_model(max_position_embeddings=1024)


@pytest.fixture(params=COMPUTES)
def compute(request: pytest.FixtureRequest) -> ComputeFactory:
    if request.param == "native" and not targets():
        pytest.skip("the kernels are for x86-64 with AVX2")
    return COMPUTES[request.param]


def oracle(model: Path, token_ids: list[int]) -> tuple[NDArray[np.float64], torch.Tensor]:
    """The last hidden states and the log probabilities of all tokens by position, by transformers."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 (slow to import)

    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        hidden = loaded.model(torch.tensor([token_ids])).last_hidden_state[0]
        return hidden.double().numpy(), loaded.lm_head(hidden).double().log_softmax(-1)


def run(
    model: Path, world: int, compute: ComputeFactory, new: NewSequence, chunks: tuple[int, ...]
) -> list[StepResult]:
    """The results of rank 0 for a prompt in those chunks, beside another prompt that is sampled."""

    def work(collectives: Collectives) -> list[StepResult]:
        with open_checkpoint(model) as checkpoint:
            runner = Runner(compute(checkpoint, read_config(model), collectives, 128))
        blocks, results, begin = Blocks(128), [], 0
        for step, count in enumerate(chunks):
            tokens, end = new.token_ids[begin : begin + count], begin + count
            scheduled = [blocks.chunk(1, begin, tokens, sample=end == len(new.token_ids))]
            admit = [] if step else [new]
            if end == len(new.token_ids):
                admit.append(new_sequence(2, ANOTHER))
                scheduled.append(blocks.chunk(2, 0, ANOTHER))
            results.append(runner.run_step(StepPlan(step_id=step + 1, admit=admit, chunks=scheduled)))
            begin = end
        return results

    return run_threads(world, work)[0]


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_embeddings_are_pooled_hidden_states(
    model: Path, compute: ComputeFactory, world: int, pooling: str
) -> None:
    hidden, _ = oracle(model, PROMPT)
    wanted = hidden[-1] if pooling == "last" else hidden.mean(axis=0)
    for chunks, dimensions in (((700,), 0), (CHUNKS, 20)):
        options = EmbeddingOptions(
            pooling="last" if pooling == "last" else "mean", dimensions=dimensions, normalize=bool(dimensions)
        )
        results = run(model, world, compute, new_sequence(1, PROMPT, embedding=options), chunks)
        assert [len(result.prompts) for result in results] == [0] * (len(chunks) - 1) + [1]
        assert [sampled.seq_id for sampled in results[-1].sampled] == [1, 2], "the other one is sampled"
        found = np.frombuffer(results[-1].prompts[0].embedding, "<f4")
        if dimensions:
            wanted = wanted[:dimensions] / np.linalg.norm(wanted[:dimensions])
        np.testing.assert_allclose(found, wanted, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_prompts_are_scored(model: Path, compute: ComputeFactory, world: int) -> None:
    _, logprobs = oracle(model, PROMPT)
    wanted = [float(logprobs[i, token]) for i, token in enumerate(PROMPT[1:])]
    tops = logprobs.topk(3)
    sampled = []
    for chunks in ((700,), CHUNKS):
        new = new_sequence(1, PROMPT, EngineSampling(temperature=0, prompt_logprobs=3), scored=1)
        results = run(model, world, compute, new, chunks)
        parts = [part for result in results for part in result.prompts]
        firsts = [part.first for part in parts]
        assert firsts == sorted(firsts)
        scores = [score for part in parts for score in part.scores]
        np.testing.assert_allclose([score.logprob for score in scores], wanted, atol=5e-5)
        assert [[token for token, _ in score.top] for score in scores] == tops.indices[:-1].tolist()
        found = [[value for _, value in score.top] for score in scores]
        np.testing.assert_allclose(found, tops.values[:-1], atol=5e-5)
        sampled.append([one.token_id for one in results[-1].sampled])
    plain = run(model, 1, compute, new_sequence(1, PROMPT), (700,))
    assert sampled == 2 * [[one.token_id for one in plain[-1].sampled]], "the answer is the same"


def test_scores_that_the_leader_has_are_not_computed_again(model: Path, compute: ComputeFactory) -> None:
    sampling = EngineSampling(temperature=0, prompt_logprobs=0)
    new = new_sequence(1, PROMPT, sampling, scored=600)
    parts = [p for result in run(model, 1, compute, new, (500, 200)) for p in result.prompts]
    assert parts[0].first == 600
    assert sum(len(part.scores) for part in parts) == 100
    none = msgspec.structs.replace(new, scored=700)
    assert [result.prompts for result in run(model, 1, compute, none, (700,))] == [[]]
