"""Measures answers with and without draft tokens: a text that is copied, and one that is free.

All run on one engine, in turns, with the same prompts and seeds: without, with prompt lookup, and with a
draft model as well where there is one. The tokens must be equal.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.engine.driver import Driver, Run, kv_tokens, start_driver
from benchmarks.engine_plans import SpeculationPlan, model_name
from benchmarks.lib.measuring import BenchError, Progress
from services.worker.draft_model import check_draft_model, draft_run
from services.worker.leader.drafting.draft_engine import DraftEngine
from services.worker.leader.drafting.draft_rounds import DraftRounds
from services.worker.model_files.load_model import load_model
from services.worker.model_files.model import Model
from services.worker.orchestrator.options import RankEngineOptions
from services.worker.orchestrator.rank_engine import RankEngine
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.run_config import EngineRunConfig
from services.worker.text.chat_template import LIMIT_S
from services.worker.text.control_tokens import ControlTokenGuard
from shared.host.cores_and_memory import usable_cores
from shared.messages import ChatMessage

_START_S = 900.0
_POLL_S = 0.02
_SENTENCES = (
    "The harbour wakes before the town does.",
    "At four the first boats come in, low in the water, and the crates are thrown onto the quay in silence.",
    "By five the auction hall is full of light and of steam from the coffee stalls, and the clerks write "
    "numbers on slates that are wiped before noon.",
    "The gulls know the hours better than the clerks.",
    "When the last crate is sold they leave the roofs, one after the other, and the hall is washed with cold "
    "water from a hose.",
    "Then the town wakes, and eats, and does not ask where the fish came from.",
)
_TASKS = {
    "copy": "Repeat this text word by word, twice:\n\n{text}",
    "free": "Write a story that begins like this:\n\n{text}",
}
_TEMPERATURES = {"copy": 0.0, "free": 1.0}


@dataclass(slots=True)
class _Found:
    """Runs of one task and batch size with drafts of one kind.

    Attributes:
        plain: Without drafts; as many as `drafted`.
        drafted: With drafts.
        model_draft_tokens: Those that the draft model gave.
    """

    plain: list[Run] = field(default_factory=list)
    drafted: list[Run] = field(default_factory=list)
    draft_tokens: int = 0
    accepted_tokens: int = 0
    model_draft_tokens: int = 0
    model_accepted_tokens: int = 0


def speculation_prompts(model: Model, task: str, count: int) -> list[list[int]]:
    """Return the token ids of prompts for a task; each begins the text with another sentence."""
    prompts = []
    for first in range(count):
        first_sentence = first % len(_SENTENCES)
        content = _TASKS[task].format(
            text=" ".join(_SENTENCES[first_sentence:] + _SENTENCES[:first_sentence])
        )
        if model.template is None:
            prompts.append(model.tokenizer.encode(content, add_special_tokens=False))
            continue
        guard = ControlTokenGuard(model.tokenizer, model.template)
        prompt = guard.render_prompt([ChatMessage(role="user", content=content)], LIMIT_S)
        prompts.append(guard.encode_prompt(prompt))
    return prompts


async def measure(plan: SpeculationPlan, progress: Progress) -> dict[str, Any]:
    """Measure all tasks and batch sizes, with and without drafts in turns.

    Raises:
        EngineFailed: A rank refused the model or is gone.
        BenchError: An answer with drafts differs from that without them.
    """
    model = load_model(plan.model)
    prompts = {task: speculation_prompts(model, task, max(plan.batches)) for task in _TASKS}
    longest = max(len(ids) for found in prompts.values() for ids in found)
    threads = plan.threads or max(1, usable_cores() // plan.tensor_parallel)
    run = EngineRunConfig(
        model=str(plan.model),
        tensor_parallel=plan.tensor_parallel,
        threads=threads,
        precision=plan.precision,
        kv_cache_tokens=kv_tokens(max(plan.batches), longest + plan.tokens),
        engine_start_timeout_s=_START_S,
    )
    rows = []
    async with AsyncExitStack() as stack:
        progress("loading")
        driver, _ = await start_driver(
            stack, RankEngineOptions(run=run), max(plan.batches), plan.draft_tokens
        )
        if not driver.speculation.most:
            raise BenchError("a KV cache with sliding layers or cold blocks has no drafts")
        kinds: dict[str, DraftRounds | None] = {"lookup": None}
        if plan.draft_model is not None:
            progress("loading the draft model")
            kinds["draft"] = await _start_draft_model(stack, plan, plan.draft_model, run, model)
        for batch in plan.batches:
            for task, of_task in prompts.items():
                found = await _alternate(plan, driver, kinds, (task, of_task[:batch]), progress)
                rows += [_row(task, batch, kind, one) for kind, one in found.items()]
    return {
        "model": model_name(plan.model),
        "precision": plan.precision,
        "draft_model": model_name(plan.draft_model) if plan.draft_model else "",
        "draft_precision": plan.draft_precision,
        "tp": plan.tensor_parallel,
        "threads": threads,
        "tokens": plan.tokens,
        "draft_tokens": plan.draft_tokens,
        "rows": rows,
    }


async def _start_draft_model(
    stack: AsyncExitStack, plan: SpeculationPlan, path: Path, run: EngineRunConfig, model: Model
) -> DraftRounds:
    """Starts the engine of the draft model, which is stopped with the stack.

    Raises:
        BenchError: It does not start.
    """
    draft = check_draft_model(path, model)
    options = RankEngineOptions(run=draft_run(run, path, plan.draft_precision))
    engine = DraftEngine(RankEngine(options), draft.name)
    stack.push_async_callback(engine.stop)
    running = asyncio.create_task(engine.run_forever())
    stack.callback(running.cancel)
    while not engine.up.is_set():
        if engine.failure:
            raise BenchError(f"the draft model does not start: {engine.failure}")
        await asyncio.sleep(_POLL_S)
    return DraftRounds(engine)


async def _alternate(
    plan: SpeculationPlan,
    driver: Driver,
    kinds: Mapping[str, DraftRounds | None],
    task: tuple[str, list[list[int]]],
    progress: Progress,
) -> dict[str, _Found]:
    """A warm-up and the repeats, each without drafts and with those of each kind.

    Args:
        kinds: Of drafts, with what asks a draft model for some.
        task: Its name and its prompts.
        progress: Gets a line for each repeat.
    """
    name, prompts = task
    found = {kind: _Found() for kind in kinds}
    for repeat in range(plan.repeats + 1):
        progress(f"{name} x {len(prompts)}: {f'repeat {repeat}' if repeat else 'warm-up'}")
        sampling = EngineSampling(temperature=_TEMPERATURES[name], seed=repeat, ignore_eos=True)
        driver.speculation.most, driver.drafts = 0, None
        plain = await driver.run_batch(prompts, plan.tokens, sampling=sampling)
        for kind, drafts in kinds.items():
            driver.speculation.most, driver.drafts = plan.draft_tokens, drafts
            driver.speculation.take_counts()
            drafted = await driver.run_batch(prompts, plan.tokens, sampling=sampling)
            counts = driver.speculation.take_counts()
            if plain.tokens != drafted.tokens:
                why = f"{name}, repeat {repeat}: the tokens with drafts ({kind}) differ from those without"
                raise BenchError(why)
            if repeat:
                one = found[kind]
                one.plain.append(plain)
                one.drafted.append(drafted)
                one.draft_tokens += counts.draft_tokens
                one.accepted_tokens += counts.accepted_tokens
                one.model_draft_tokens += counts.model_draft_tokens
                one.model_accepted_tokens += counts.model_accepted_tokens
    return found


def _row(task: str, batch: int, kind: str, found: _Found) -> dict[str, Any]:
    ratios = [on.decode_rate / off.decode_rate for off, on in zip(found.plain, found.drafted, strict=True)]
    steps = sum(len(run.steps) for run in found.drafted)
    return {
        "task": task,
        "batch": batch,
        "guesses": kind,
        "plain_tokens_per_s": round(median(run.decode_rate for run in found.plain), 1),
        "tokens_per_s": round(median(run.decode_rate for run in found.drafted), 1),
        "ratio": round(median(ratios), 3),
        "least_ratio": round(min(ratios), 3),
        "tokens_per_step": round(sum(run.decode_tokens for run in found.drafted) / max(1, steps), 2),
        "draft_tokens": found.draft_tokens,
        "accepted_tokens": found.accepted_tokens,
        "model_draft_tokens": found.model_draft_tokens,
        "model_accepted_tokens": found.model_accepted_tokens,
    }
