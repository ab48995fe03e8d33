"""Steps that a leader might plan for a few texts: prompts whole and in chunks, decodes, shared blocks, gaps.

Each function gives plans, and for each plan the rows of logits that it samples, as (text, length so far).
"""

import random
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from services.worker.rank_protocol.plan import StepPlan
from tests.kits.engine.plans import Blocks, new_sequence

Rows = list[list[tuple[str, int]]]
NUM_BLOCKS = 64


def check_rows(
    computed: Iterable[Tensor], rows: Rows, logits: Mapping[str, Tensor], tolerance: float
) -> None:
    """Compares the rows that plans gave with the logits of whole texts, each [tokens, vocab]."""
    for found, wanted in zip(computed, rows, strict=True):
        assert len(found) == len(wanted)
        for row, (key, length) in zip(found, wanted, strict=True):
            torch.testing.assert_close(row, logits[key][length - 1], atol=tolerance, rtol=0)


def mixed_plans(a: list[int], b: list[int], c: list[int]) -> tuple[list[StepPlan], Rows]:
    """Chunked prefill of a, whole prefill of b, then mixed batches; texts of 97 tokens or more."""
    blocks = Blocks(NUM_BLOCKS)
    cut = blocks.chunk
    plans = [
        StepPlan(step_id=1, admit=[new_sequence(1, a[:90])], chunks=[cut(1, 0, a[:21], sample=False)]),
        # a middle chunk and a whole prompt in one step
        StepPlan(
            step_id=2,
            admit=[new_sequence(2, b[:50])],
            chunks=[cut(1, 21, a[21:38], sample=False), cut(2, 0, b[:50])],
        ),
        # the decode of 2 before the last chunk of 1 and a prompt of one token
        StepPlan(
            step_id=3,
            admit=[new_sequence(3, c[:1])],
            chunks=[cut(2, 50, b[50:51]), cut(1, 38, a[38:90]), cut(3, 0, c[:1])],
        ),
        # decodes at very different lengths
        StepPlan(step_id=4, chunks=[cut(3, 1, c[1:2]), cut(1, 90, a[90:91]), cut(2, 51, b[51:52])]),
        # sequence 2 ends and its seq_id is not reused; sequence 3 crosses a block boundary
        StepPlan(step_id=5, release=[2], chunks=[cut(1, 91, a[91:92]), cut(3, 2, c[2:20])]),
        # sequence 4 shares blocks that sequence 1 computed
        StepPlan(
            step_id=6,
            admit=[new_sequence(4, a[:70])],
            chunks=[cut(1, 92, a[92:93]), blocks.share(1, 4, 64, a[64:70])],
        ),
        # both continue in their own blocks
        StepPlan(step_id=7, chunks=[cut(4, 70, a[70:71]), cut(1, 93, a[93:97])]),
    ]
    rows = [
        [],
        [("b", 50)],
        [("b", 51), ("a", 90), ("c", 1)],
        [("c", 2), ("a", 91), ("b", 52)],
        [("a", 92), ("c", 20)],
        [("a", 93), ("a", 70)],
        [("a", 71), ("a", 97)],
    ]
    return plans, rows


def random_plans(texts: dict[str, list[int]], draw: random.Random) -> tuple[list[StepPlan], Rows]:
    """Sequences computed in random chunks; some are preempted and recomputed in blocks that others freed."""
    blocks, next_id = Blocks(NUM_BLOCKS), 0
    running: dict[int, tuple[str, int]] = {}  # seq_id -> (text, number of tokens computed)
    plans, rows = [], []
    for step_id in range(1, 31):
        release = [
            seq_id
            for seq_id, (text, computed) in running.items()
            if draw.random() < 0.1 or computed == len(texts[text])
        ]
        for seq_id in release:
            blocks.release(seq_id)
            del running[seq_id]
        admit = []
        for text, tokens in texts.items():
            if text not in [name for name, _ in running.values()]:
                next_id += 1
                admit.append(new_sequence(next_id, tokens))
                running[next_id] = (text, 0)
        chunks, wanted = [], []
        for seq_id in draw.sample(list(running), draw.randint(1, len(running))):
            text, start = running[seq_id]
            end = min(len(texts[text]), start + draw.choice((1, 1, 1, 7, 16, 40)))
            sample = draw.random() < 0.7
            chunks.append(blocks.chunk(seq_id, start, texts[text][start:end], sample))
            running[seq_id] = (text, end)
            wanted += [(text, end)] if sample else []
        plans.append(StepPlan(step_id=step_id, release=release, admit=admit, chunks=chunks))
        rows.append(wanted)
    return plans, rows


def greedy_plans(tokens: list[int], prompt: int) -> list[StepPlan]:
    """A prompt, then its continuation token by token; each plan samples."""
    blocks = Blocks(NUM_BLOCKS)
    chunks = [(0, prompt), *((at, at + 1) for at in range(prompt, len(tokens) - 1))]
    return [
        StepPlan(
            step_id=step_id,
            admit=[] if begin else [new_sequence(1, tokens[:prompt])],
            chunks=[blocks.chunk(1, begin, tokens[begin:end])],
        )
        for step_id, (begin, end) in enumerate(chunks)
    ]
