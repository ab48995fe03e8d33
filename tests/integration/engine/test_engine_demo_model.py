"""The shipped model: the same greedy tokens at any tensor-parallel size, and the logits of transformers."""

from functools import cache
from pathlib import Path

import pytest
import torch
import uvloop
from tokenizers import Tokenizer

from services.worker.orchestrator.rank_engine import RankEngine
from services.worker.rank_protocol.plan import StepPlan
from tests.kits.engine.rank_options import rank_options
from tests.kits.engine.rank_threads import (
    GREEDY,
    Blocks,
    generate,
    new_sequence,
    plan_logits,
    transformers_logits,
)

DEMO = Path(__file__).parents[3] / "models" / "demo"
PROMPT = "My name is Ada and I like to write programs. A class in Python is"
COUNT = 256


@cache
def prompt_ids() -> list[int]:
    token_ids: list[int] = Tokenizer.from_file(str(DEMO / "tokenizer.json")).encode(PROMPT).ids
    return token_ids


@cache
def greedy(world: int) -> list[int]:
    """The first 256 tokens of greedy decoding with `world` ranks."""

    async def run() -> list[int]:
        engine = RankEngine(rank_options(model=DEMO, tensor_parallel=world, kv_cache_tokens=8192))
        try:
            await engine.start()
            return (await generate(engine, [prompt_ids()], COUNT, [GREEDY]))[0]
        finally:
            await engine.stop()

    return uvloop.run(run())


@pytest.mark.parametrize("world", [1, 2, 4])
def test_greedy_tokens_are_identical(world: int) -> None:
    assert len(greedy(world)) == COUNT
    assert greedy(world) == greedy(1)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_logits_equal_transformers(world: int) -> None:
    """Prefills whole and in chunks, then decodes every token of the greedy text."""
    prompt = prompt_ids()
    text = [*prompt, *greedy(1)]
    expected = transformers_logits(DEMO, text)
    blocks, cut = Blocks(64), len(prompt) // 2
    plans = [
        StepPlan(step_id=1, admit=[new_sequence(1, prompt)], slices=[blocks.slice(1, 0, prompt)]),
        StepPlan(step_id=2, admit=[new_sequence(2, prompt)], slices=[blocks.slice(2, 0, prompt[:cut])]),
        StepPlan(step_id=3, slices=[blocks.slice(2, cut, prompt[cut:])]),
    ]
    plans += [
        StepPlan(step_id=position, slices=[blocks.slice(1, position, [text[position]])])
        for position in range(len(prompt), len(text))
    ]
    found = torch.cat(plan_logits(DEMO, world, plans))
    positions = [len(prompt) - 1, cut - 1, len(prompt) - 1, *range(len(prompt), len(text))]
    torch.testing.assert_close(found, expected[positions], atol=1e-4, rtol=0)
