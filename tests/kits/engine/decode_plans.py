"""Decode plans as a leader would send them, and a stand-in for graph capture that runs eagerly."""

from collections.abc import Callable

import torch
from torch import Tensor

from services.worker.engine.plain.cuda_graphs import Work
from services.worker.rank_protocol.plan import StepPlan
from tests.kits.engine.rank_threads import Blocks, new_sequence

PROMPTS = (5, 40, 17, 70, 33)  # tokens


STEPS = 24  # decode steps: each prompt crosses a block boundary and exceeds the window


class EagerCapture:
    """Runs the work again where a graph would be replayed, and writes into the same result."""

    def __init__(self) -> None:
        self.recorded = 0
        self.replayed = 0

    def __call__(self, work: Work) -> tuple[Callable[[], object], Tensor | None]:
        self.recorded += 1
        for _ in range(2):
            result = work()

        def replay() -> None:
            self.replayed += 1
            again = work()
            if result is not None and again is not None:
                result.copy_(again)

        return replay, result


def decode_plans(unsampled: int = -1) -> list[StepPlan]:
    """A prefill of all prompts, then decodes of fewer and fewer sequences; `unsampled` is not sampled."""
    blocks, draw = Blocks(64), torch.Generator().manual_seed(3)
    texts: list[list[int]] = [
        torch.randint(0, 203, (size + STEPS,), generator=draw).tolist() for size in PROMPTS
    ]
    prompts = [text[:size] for text, size in zip(texts, PROMPTS, strict=True)]
    admit = [new_sequence(i, prompt) for i, prompt in enumerate(prompts)]
    chunks = [blocks.chunk(i, 0, prompt) for i, prompt in enumerate(prompts)]
    plans = [StepPlan(step_id=0, admit=admit, chunks=chunks)]
    for step in range(STEPS):
        running = range(len(PROMPTS) if step < STEPS // 2 else 2)
        chunks = [
            blocks.chunk(i, PROMPTS[i] + step, [texts[i][PROMPTS[i] + step]], sample=i != unsampled)
            for i in reversed(running)
        ]
        plans.append(StepPlan(step_id=step + 1, chunks=chunks))
    return plans
