"""What tensor parallelism costs: a group of ranks beside one rank alone, and as many that work side by side.

All engines are loaded at once and take turns, each rank on one thread. Independent ranks share nothing but
the machine's memory, so what they reach together is the most that a group of them could.
"""

import asyncio
from contextlib import AsyncExitStack
from statistics import median
from typing import Any

from benchmarks.engine.driver import Driver, Run
from benchmarks.engine.engine import Plan, Progress, make_prompts, precision_of, started
from benchmarks.engine.engine_row import step_figures
from services.worker.engine.checkpoint.model_config import ModelConfig
from services.worker.rank_protocol.rank_messages import Quantize

BATCH = 8


async def measure_independent(
    plan: Plan, config: ModelConfig, quantize: Quantize, world: int, progress: Progress
) -> dict[str, Any]:
    """Decode rates at batch 8: of the group, of one rank, and the sum over ranks that run side by side.

    Raises:
        EngineFailed: an engine broke.
    """
    what = f"{precision_of(quantize)}, tp {world} and independent ranks"
    runs: dict[str, list[Run]] = {"group": [], "one": []}
    together: list[float] = []
    async with AsyncExitStack() as stack:
        progress(f"{what}: loading the group")
        group = Driver(*await started(stack, plan.options(quantize, world, 1)), _largest(plan))
        progress(f"{what}: loading {world} ranks")
        alone = [
            Driver(*await started(stack, plan.options(quantize, 1, 1)), _largest(plan)) for _ in range(world)
        ]
        for repeat in range(plan.repeats + 1):
            prompts = make_prompts(BATCH, plan.prompt, config.vocab_size, repeat)
            for name, driver in (("group", group), ("one", alone[0])):
                progress(f"{what}: {'the group' if name == 'group' else 'one rank'}, repeat {repeat}")
                runs[name].append(await driver.run(prompts, plan.tokens))
            progress(f"{what}: {world} ranks together, repeat {repeat}")
            # other prompts than before: this rank has those in its prefix cache
            prompts = make_prompts(BATCH, plan.prompt, config.vocab_size, 1000 + repeat)
            side_by_side = await asyncio.gather(*(driver.run(prompts, plan.tokens) for driver in alone))
            together.append(sum(run.decode_tokens / run.decode_s for run in side_by_side))
    rate = {
        name: median(run.decode_tokens / run.decode_s for run in found[1:]) for name, found in runs.items()
    }
    most = median(together[1:])  # the first of each was the warm-up
    return {
        "precision": precision_of(quantize), "tp": world, "batch": BATCH,
        "decode_tokens_per_s": {
            "group": round(rate["group"], 1),
            "one_rank_alone": round(rate["one"], 1),
            "independent_ranks_together": round(most, 1),
        },
        "speedup_over_one_rank": round(rate["group"] / rate["one"], 3),
        "share_of_independent_ranks": round(rate["group"] / most, 3),
        "collectives_share": step_figures(runs["group"][1:])["collectives_share"],
    }  # fmt: skip


def _largest(plan: Plan) -> int:
    return max(BATCH, *plan.batches)
