"""Measures decoding under JSON schemas, in turns with free decoding of as many tokens.

`text`: strings without end, so nearly every token is sampled under a mask; against free decoding that is the
cost of masks. `records`: objects with long keys, most of whose tokens are forced; at once against sampled
one by one. One batch is run by `benchmarks/engine/driver.py`.
"""

import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from statistics import median
from typing import Any

from benchmarks.engine.driver import Driver, Run, kv_tokens, make_prompts, start_driver
from benchmarks.engine_plans import GrammarPlan, model_name
from benchmarks.lib.measuring import BenchError, Progress, milliseconds
from services.worker.domain.generation.token_constraint import ConstraintFactory, TokenConstraint
from services.worker.model_files.load_model import load_model
from services.worker.orchestrator.options import RankEngineOptions
from services.worker.rank_protocol.engine_info import EngineInfo
from services.worker.rank_protocol.run_config import EngineRunConfig
from services.worker.rank_protocol.step_masks import mask_of
from services.worker.text.grammars.limits import GrammarLimits
from services.worker.text.grammars.structured_grammar import compile_structured
from services.worker.text.grammars.token_vocabulary import TokenVocabulary
from shared.messages import StructuredOutput

_TEXT = {"type": "array", "minItems": 20, "items": {"type": "string", "minLength": 400}}
_RECORD = {
    "type": "object",
    "properties": {
        "customer_identifier": {"type": "integer", "minimum": 10_000, "maximum": 99_999},
        "shipping_address": {
            "type": "object",
            "properties": {
                "street_name": {"type": "string", "minLength": 8, "maxLength": 16},
                "postal_code": {"type": "string", "pattern": "^[0-9]{5}$"},
            },
            "required": ["street_name", "postal_code"],
            "additionalProperties": False,
        },
        "payment_status": {"enum": ["pending", "completed", "cancelled"]},
    },
    "required": ["customer_identifier", "shipping_address", "payment_status"],
    "additionalProperties": False,
}
_SCHEMAS = {"text": _TEXT, "records": {"type": "array", "minItems": 50, "items": _RECORD}}
_START_S = 900.0


class OneByOne:
    """Gives the same tokens as the grammar does with forced tokens, and forces none.

    Args:
        grammar: At the beginning of an answer.
    """

    def __init__(self, grammar: TokenConstraint) -> None:
        self._grammar = grammar
        self._run = grammar.forced()  # the rest of a run

    def accept(self, token_ids: Sequence[int]) -> None:
        """Moves on by tokens of the choice."""
        for token_id in token_ids:
            self._grammar.accept([token_id])
            del self._run[:1]
            if not self._run:
                self._run = self._grammar.forced()

    def mask(self) -> bytes | None:
        """Returns the tokens that may come next: one token inside a run."""
        return mask_of(self._run[0]) if self._run else self._grammar.mask()

    def forced(self) -> list[int]:
        """Returns no token."""
        return []

    @property
    def ended(self) -> bool:
        """Whether only the end may come."""
        return self._grammar.ended and not self._run


async def measure(plan: GrammarPlan, progress: Progress) -> dict[str, Any]:
    """Measure the four kinds of decoding in turns.

    Raises:
        EngineFailed: The engine broke.
        BenchError: The figures would mean nothing.
    """
    run = EngineRunConfig(
        model=str(plan.model),
        tensor_parallel=plan.tensor_parallel,
        threads=plan.threads_each,
        precision=plan.precision,
        kv_cache_tokens=kv_tokens(plan.batch, plan.prompt + plan.tokens),
        engine_start_timeout_s=_START_S,
    )
    async with AsyncExitStack() as stack:
        progress("loading")
        driver, info = await start_driver(stack, RankEngineOptions(run=run), plan.batch)
        progress("compiling")
        grammars = _grammars(plan, info)
        runs = await _run_alternately(plan, driver, info, grammars, progress)
    _compare_tokens(runs)
    rows = [{"kind": kind, **_row(kinds)} for kind, kinds in runs.items()]
    rates = {row["kind"]: row["tokens_per_s"] for row in rows}
    return {
        "model": model_name(plan.model),
        "precision": plan.precision,
        "tp": plan.tensor_parallel,
        "threads": plan.threads_each,
        "batch": plan.batch,
        "tokens": plan.tokens,
        "rows": rows,
        "text_of_free": round(rates["text"] / rates["free"], 4),
        "forced_of_one_by_one": round(rates["records"] / rates["records one by one"], 4),
    }


def _grammars(plan: GrammarPlan, info: EngineInfo) -> dict[str, ConstraintFactory | None]:
    """Return the kinds of decoding and the grammar of each."""
    model = load_model(plan.model)
    vocabulary = TokenVocabulary(model.tokenizer, model.eos_ids, info.vocab_size)
    compiled: dict[str, ConstraintFactory] = {
        name: compile_structured(
            StructuredOutput(kind="json_schema", definition=json.dumps(schema)), vocabulary, GrammarLimits()
        )
        for name, schema in _SCHEMAS.items()
    }
    records = compiled["records"]
    return {"free": None, **compiled, "records one by one": lambda: OneByOne(records())}


async def _run_alternately(
    plan: GrammarPlan,
    driver: Driver,
    info: EngineInfo,
    grammars: dict[str, ConstraintFactory | None],
    progress: Progress,
) -> dict[str, list[Run]]:
    """Run a warm-up and the repeats, each with the same prompts for all kinds in turn."""
    runs: dict[str, list[Run]] = {kind: [] for kind in grammars}
    for repeat in range(plan.repeats + 1):
        # found in the prefix cache by all kinds but the first; only decoding is measured
        prompts = make_prompts(plan.batch, plan.prompt, info.vocab_size, repeat)
        for kind, grammar in grammars.items():
            progress(f"{kind}: {f'repeat {repeat}' if repeat else 'warm-up'}")
            run = await driver.run_batch(prompts, plan.tokens, grammar)
            if repeat:
                runs[kind].append(run)
    return runs


def _compare_tokens(runs: dict[str, list[Run]]) -> None:
    """Refuse figures of forced tokens that are not those sampled one by one."""
    for forced, sampled in zip(runs["records"], runs["records one by one"], strict=True):
        if forced.tokens != sampled.tokens:
            raise BenchError("forced tokens differ from those that were sampled one by one")


def _row(runs: list[Run]) -> dict[str, Any]:
    """Return the medians over the repeats of one kind."""
    steps = [step for run in runs for step in run.steps]
    return {
        "tokens_per_s": round(median(run.decode_rate for run in runs), 1),
        "tokens_per_step": round(sum(run.decode_tokens for run in runs) / max(1, len(steps)), 2),
        "step_ms": milliseconds(median(gap for run in runs for gap in run.step_s)),
        "sampling_ms": milliseconds(sum(step.sampling_s for step in steps) / max(1, len(steps))),
        "masks_wait_ms": milliseconds(sum(step.masks_s for step in steps) / max(1, len(steps))),
        "masks_made_ms": milliseconds(sum(run.masks_s for run in runs) / max(1, len(steps))),
    }
