"""The shipped model: the same greedy tokens at any tensor-parallel size, and the logits of transformers."""

from functools import cache
from pathlib import Path

import pytest
import torch
import uvloop
from tokenizers import Tokenizer

from services.worker.orchestrator.rank_engine import RankEngine
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.plan import StepPlan
from services.worker.rank_protocol.prompt_parts import PromptPart
from shared.messages import EmbeddingOptions
from tests.kits.engine.rank_options import rank_options
from tests.kits.engine.rank_threads import (
    GREEDY,
    Blocks,
    generate,
    new_sequence,
    plan_logits,
    transformers_hidden,
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
        StepPlan(step_id=1, admit=[new_sequence(1, prompt)], chunks=[blocks.chunk(1, 0, prompt)]),
        StepPlan(step_id=2, admit=[new_sequence(2, prompt)], chunks=[blocks.chunk(2, 0, prompt[:cut])]),
        StepPlan(step_id=3, chunks=[blocks.chunk(2, cut, prompt[cut:])]),
    ]
    plans += [
        StepPlan(step_id=position, chunks=[blocks.chunk(1, position, [text[position]])])
        for position in range(len(prompt), len(text))
    ]
    found = torch.cat(plan_logits(DEMO, world, plans))
    positions = [len(prompt) - 1, cut - 1, len(prompt) - 1, *range(len(prompt), len(text))]
    torch.testing.assert_close(found, expected[positions], atol=1e-4, rtol=0)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_embedding_and_scores_of_a_prompt_equal_transformers(world: int) -> None:
    ids = prompt_ids()
    wanted = transformers_logits(DEMO, ids).double().log_softmax(-1)
    mean = EmbeddingOptions(pooling="mean", normalize=False)

    async def run() -> list[PromptPart]:
        options = rank_options(model=DEMO, tensor_parallel=world, kv_cache_tokens=1024, precision="fp32")
        engine = RankEngine(options)
        try:
            info = await engine.start()
            assert info.hidden_size == transformers_hidden(DEMO, ids).shape[1]
            blocks, scored = Blocks(64), EngineSampling(temperature=0, prompt_logprobs=2)
            admit = [
                new_sequence(1, ids, embedding=mean),
                new_sequence(2, ids, embedding=EmbeddingOptions(normalize=False)),
                new_sequence(3, ids, scored, scored=1),
            ]
            chunks = [blocks.chunk(new.seq_id, 0, ids) for new in admit]
            result = await engine.submit(StepPlan(step_id=1, admit=admit, chunks=chunks))
            assert [one.seq_id for one in result.sampled] == [1, 2, 3]
            return result.prompts
        finally:
            await engine.stop()

    parts = {part.seq_id: part for part in uvloop.run(run())}
    hidden = transformers_hidden(DEMO, ids).double()
    for seq_id, vector in ((1, hidden.mean(0)), (2, hidden[-1])):
        found = torch.frombuffer(bytearray(parts[seq_id].embedding), dtype=torch.float32).double()
        torch.testing.assert_close(found, vector, atol=2e-5, rtol=0)
    found = torch.tensor([score.logprob for score in parts[3].scores], dtype=torch.float64)
    torch.testing.assert_close(found, wanted[range(len(ids) - 1), ids[1:]], atol=5e-5, rtol=0)
    tops = [[token for token, _ in score.top] for score in parts[3].scores]
    assert tops == wanted[:-1].topk(2).indices.tolist()
