"""Measures what tensor parallelism costs: a group of ranks beside one rank, and beside ranks that work alone.

All engines are loaded at once and take turns, each rank on one thread. Independent ranks share nothing but
the machine's memory, so their rates together are the most that a group of them could reach.
"""

import asyncio
from contextlib import AsyncExitStack
from statistics import median
from typing import Any

from benchmarks.engine.driver import Run, make_prompts, rank_options, start_driver
from benchmarks.engine.row import step_figures
from benchmarks.engine_plans import EnginePlan
from benchmarks.lib.measuring import Progress
from services.worker.engine.config.model import ModelConfig
from services.worker.rank_protocol.run_config import Precision

BATCH = 8


async def measure_independent(
    plan: EnginePlan, config: ModelConfig, precision: Precision, world: int, progress: Progress
) -> dict[str, Any]:
    """Measure decode rates at batch 8: of the group, of one rank, and the sum over independent ranks.

    Raises:
        EngineFailed: An engine broke.
    """
    what = f"{precision}, tp {world} and independent ranks"
    runs: dict[str, list[Run]] = {"the group": [], "one rank": []}
    together: list[float] = []
    largest = max(BATCH, *plan.batches)
    async with AsyncExitStack() as stack:
        progress(f"{what}: loading the group")
        group, _ = await start_driver(stack, rank_options(plan, precision, world, 1), largest)
        progress(f"{what}: loading {world} ranks")
        options = rank_options(plan, precision, 1, 1)
        alone = [(await start_driver(stack, options, largest))[0] for _ in range(world)]
        for repeat in range(plan.repeats + 1):
            prompts = make_prompts(BATCH, plan.prompt, config.vocab_size, repeat)
            for name, driver in (("the group", group), ("one rank", alone[0])):
                progress(f"{what}: {name}, repeat {repeat}")
                runs[name].append(await driver.run_batch(prompts, plan.tokens))
            progress(f"{what}: {world} ranks together, repeat {repeat}")
            # other prompts than before, which the first rank has in its prefix cache
            prompts = make_prompts(BATCH, plan.prompt, config.vocab_size, 1000 + repeat)
            side_by_side = await asyncio.gather(*(driver.run_batch(prompts, plan.tokens) for driver in alone))
            together.append(sum(run.decode_rate for run in side_by_side))
    # the first run of each was the warm-up
    as_group, one = (median(run.decode_rate for run in found[1:]) for found in runs.values())
    most = median(together[1:])
    return {
        "precision": precision, "tp": world, "batch": BATCH,
        "decode_tokens_per_s": {
            "group": round(as_group, 1),
            "one_rank_alone": round(one, 1),
            "independent_ranks_together": round(most, 1),
        },
        "speedup_over_one_rank": round(as_group / one, 3),
        "share_of_independent_ranks": round(as_group / most, 3),
        "collectives_share": step_figures(runs["the group"][1:])["collectives_share"],
    }  # fmt: skip
