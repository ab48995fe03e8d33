"""Measures answers with and without draft tokens: a text that is copied, and one that is free.

Both run on one engine, in turns, with the same prompts and seeds. The tokens must be equal.
"""

from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.engine.driver import Driver, Run, kv_tokens, start_driver
from benchmarks.lib.measuring import BenchError, Progress
from benchmarks.plans import SpeculationPlan, model_name
from services.worker.host import usable_cores
from services.worker.load_model import load_model
from services.worker.model import Model
from services.worker.orchestrator.options import RankEngineOptions
from services.worker.rank_protocol.run_config import EngineRunConfig
from services.worker.text.chat_template import LIMIT_S
from services.worker.text.control_tokens import ControlTokenGuard
from shared.messages import ChatMessage, Sampling

_START_S = 900.0
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
    """Runs of one task and batch size, in pairs.

    Attributes:
        plain: Without drafts.
        drafted: With drafts.
        draft_tokens: Checked.
        accepted_tokens: Right.
    """

    plain: list[Run] = field(default_factory=list)
    drafted: list[Run] = field(default_factory=list)
    draft_tokens: int = 0
    accepted_tokens: int = 0


def speculation_prompts(model: Model, task: str, count: int) -> list[list[int]]:
    """Return the token ids of prompts for a task; each begins the text with another sentence."""
    prompts = []
    for first in range(count):
        turn = first % len(_SENTENCES)
        content = _TASKS[task].format(text=" ".join(_SENTENCES[turn:] + _SENTENCES[:turn]))
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
        for batch in plan.batches:
            for task, of_task in prompts.items():
                rows.append(_row(task, batch, await _in_turns(plan, driver, task, of_task[:batch], progress)))
    return {
        "model": model_name(plan.model),
        "precision": plan.precision,
        "tp": plan.tensor_parallel,
        "threads": threads,
        "tokens": plan.tokens,
        "draft_tokens": plan.draft_tokens,
        "rows": rows,
    }


async def _in_turns(
    plan: SpeculationPlan, driver: Driver, task: str, prompts: list[list[int]], progress: Progress
) -> _Found:
    """A warm-up and the repeats, each without and with drafts."""
    found = _Found()
    for repeat in range(plan.repeats + 1):
        progress(f"{task} x {len(prompts)}: {f'repeat {repeat}' if repeat else 'warm-up'}")
        sampling = Sampling(temperature=_TEMPERATURES[task], seed=repeat, ignore_eos=True)
        driver.speculation.most = 0
        plain = await driver.run_batch(prompts, plan.tokens, sampling=sampling)
        driver.speculation.most = plan.draft_tokens
        driver.speculation.take_counts()
        drafted = await driver.run_batch(prompts, plan.tokens, sampling=sampling)
        counts = driver.speculation.take_counts()
        if plain.tokens != drafted.tokens:
            raise BenchError(f"{task}, repeat {repeat}: the tokens with drafts differ from those without")
        if repeat:
            found.plain.append(plain)
            found.drafted.append(drafted)
            found.draft_tokens += counts.draft_tokens
            found.accepted_tokens += counts.accepted_tokens
    return found


def _row(task: str, batch: int, found: _Found) -> dict[str, Any]:
    ratios = [on.decode_rate / off.decode_rate for off, on in zip(found.plain, found.drafted, strict=True)]
    steps = sum(len(run.steps) for run in found.drafted)
    return {
        "task": task,
        "batch": batch,
        "plain_tokens_per_s": round(median(run.decode_rate for run in found.plain), 1),
        "tokens_per_s": round(median(run.decode_rate for run in found.drafted), 1),
        "ratio": round(median(ratios), 3),
        "least_ratio": round(min(ratios), 3),
        "tokens_per_step": round(sum(run.decode_tokens for run in found.drafted) / max(1, steps), 2),
        "draft_tokens": found.draft_tokens,
        "accepted_tokens": found.accepted_tokens,
    }
