"""Prompts of adapters are scored and embedded with the adapter, its head included."""

from typing import Any

import numpy as np
import pytest

from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.collectives.base import Collectives
from services.worker.engine.rank.runner import Runner
from services.worker.rank_protocol.adapters import NO_ADAPTER
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.plan import StepPlan
from services.worker.rank_protocol.prompt_parts import PromptPart
from shared.messages import EmbeddingOptions
from tests.kits.adapters.adapting import adapting
from tests.kits.adapters.comparisons import SLOTS, adapter_files, wanted_logits
from tests.kits.adapters.peft_adapters import peft_hidden
from tests.kits.engine.plans import Blocks, new_sequence
from tests.kits.engine.rank_threads import ComputeFactory, plain_compute, run_threads
from tests.kits.families.comparisons import tiled_compute
from tests.kits.families.models import family_model, text

FAMILY, RANK = "llama", 16
COMPUTES = {"plain": plain_compute, "tiled": tiled_compute}


def parts_of(key: str, world: int, compute: ComputeFactory, **fields: Any) -> list[PromptPart]:
    """What one step brings of a text with its adapter, beside the same text of the base."""
    model, tokens = family_model(FAMILY), text(key)
    files = {SLOTS[name]: source for name, source in adapter_files(FAMILY, RANK).items()}

    def work(collectives: Collectives) -> list[PromptPart]:
        with open_checkpoint(model.directory) as checkpoint:
            runner = Runner(adapting(compute, files)(checkpoint, model.config, collectives, 64))
        blocks = Blocks(64)
        slots = {1: NO_ADAPTER, 2: SLOTS[key]}
        admit = [new_sequence(seq_id, tokens, adapter=slot, **fields) for seq_id, slot in slots.items()]
        chunks = [blocks.chunk(seq_id, 0, tokens) for seq_id in slots]
        result = runner.run_step(StepPlan(step_id=1, admit=admit, chunks=chunks))
        return [part for part in result.prompts if part.seq_id == 2]

    return run_threads(world, work)[0]


@pytest.mark.parametrize("compute", list(COMPUTES))
@pytest.mark.parametrize(("key", "world"), [("a", 2), ("b", 1), ("b", 2)])  # b has the head as a target
def test_prompts_are_scored_with_their_adapter(key: str, world: int, compute: str) -> None:
    logprobs = wanted_logits(FAMILY, RANK)[key].double().log_softmax(-1)
    wanted = [float(logprobs[at, token]) for at, token in enumerate(text(key)[1:])]
    sampling = EngineSampling(temperature=0, prompt_logprobs=1)
    parts = parts_of(key, world, COMPUTES[compute], sampling=sampling, scored=1)
    found = [score.logprob for part in parts for score in part.scores]
    np.testing.assert_allclose(found, wanted, atol=1e-4)


@pytest.mark.parametrize("compute", list(COMPUTES))
def test_prompts_are_embedded_with_their_adapter(compute: str) -> None:
    options = EmbeddingOptions(pooling="last", normalize=False)
    (part,) = parts_of("a", 2, COMPUTES[compute], embedding=options)
    wanted = peft_hidden(FAMILY, adapter_files(FAMILY, RANK)["a"], text("a"))[-1]
    np.testing.assert_allclose(np.frombuffer(part.embedding, "<f4"), wanted, atol=1e-4)
