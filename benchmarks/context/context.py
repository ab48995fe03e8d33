"""Measures a decoded token over long contexts, exact and as settings shorten what it reads.

The text is prose that ships with Python. Each case has a KV cache of its own with a sequence for each
context: the prose up to it, fed in large chunks, then some tokens one by one. These are timed, in turns with
those of the other cases and contexts, and their likelihoods give the perplexity.
"""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np

from benchmarks.engine_plans import ContextPlan, model_name
from benchmarks.lib.measuring import Progress
from benchmarks.quality.divergence import Logits
from benchmarks.quality.own_logits import OwnLogits
from benchmarks.quality.scored_texts import text_windows
from services.worker.engine.config.read_config import read_config
from services.worker.model_files.load_model import load_model
from services.worker.rank_protocol.page_policy import FULL
from services.worker.rank_protocol.plan import BLOCK_SIZE
from services.worker.rank_protocol.run_config import EngineRunConfig, KVCold
from services.worker.rank_protocol.sliding_pool import PoolSizes, least_blocks, sliding_blocks

_CHUNK = 512  # tokens of a prompt that are fed together
_EXACT = "exact"


class Case(NamedTuple):
    """Settings that are compared, under a name."""

    name: str
    attention: str = FULL
    kv_cold: KVCold = "none"


class Decoded(NamedTuple):
    """What one case had at one context: seconds of a token, median; mean loss of the tokens in nats."""

    seconds: float
    loss: float


def cases(plan: ContextPlan) -> list[Case]:
    """Return the exact case first, then those with a loss."""
    return [Case(_EXACT), Case("fp8 KV", kv_cold="fp8"), *(Case(each, each) for each in plan.attention)]


def num_steps(plan: ContextPlan) -> int:
    """Return how often `measure` reports progress."""
    return (1 + len(plan.contexts)) * len(cases(plan)) + 1


def measure(plan: ContextPlan, progress: Progress) -> dict[str, Any]:
    """Return a row for each context and case.

    Raises:
        ModelError: The model cannot be computed so.
        BenchError: The text is too short.
    """
    contexts = sorted(plan.contexts)
    length = contexts[-1] + plan.tokens + 1
    (text,) = text_windows(load_model(plan.model, "bench"), length, length)
    windows = read_config(plan.model).windows
    with ExitStack() as stack:
        engines: dict[str, OwnLogits] = {}
        for case in cases(plan):
            progress(f"loading: {case.name}")
            engine = OwnLogits(
                plan.model, plan.precision, plan.threads, sequences=len(contexts), length=length,
                attention=case.attention, kv_cold=case.kv_cold,
            )  # fmt: skip
            engines[case.name] = stack.enter_context(closing(engine))
            engine.begin(len(contexts))
            for index, context in enumerate(contexts):
                progress(f"{case.name}: the prompt of {context:,} tokens")
                for begin in range(0, context, _CHUNK):
                    engine.feed(_only(index, text[begin : min(context, begin + _CHUNK)], len(contexts)))
        progress(f"{plan.tokens} tokens at each context")
        found = _decode(engines, contexts, text, plan.tokens)
        rows = [
            {
                "context": context,
                "case": name,
                "token_ms": round(1e3 * one.seconds, 3),
                "of_exact": round(one.seconds / found[_EXACT][index].seconds, 3),
                "of_shortest": round(one.seconds / found[name][0].seconds, 3),
                "perplexity": math.exp(one.loss),
                "perplexity_change": math.exp(one.loss - found[_EXACT][index].loss) - 1,
                "kv_bytes": _kv_bytes(engines[name], windows, context),
            }
            for index, context in enumerate(contexts)
            for name, one in ((name, found[name][index]) for name in engines)
        ]
        kernels = {name: engine.name for name, engine in engines.items()}
    return {"model": model_name(plan.model), "tokens": plan.tokens, "kernels": kernels, "rows": rows}


def _only(position: int, tokens: Sequence[int], sequences: int) -> list[Sequence[int]]:
    """Return what each of the sequences is fed: one of them the tokens, the others none."""
    return [tokens if index == position else () for index in range(sequences)]


def _decode(
    engines: Mapping[str, OwnLogits], contexts: Sequence[int], text: Sequence[int], tokens: int
) -> dict[str, list[Decoded]]:
    """Feed the tokens behind each context one by one, to all engines in turns."""
    seconds = {name: [list[float]() for _ in contexts] for name in engines}
    losses = {name: [list[float]() for _ in contexts] for name in engines}
    for index in range(tokens):
        for position, context in enumerate(contexts):
            token, target = text[context + index : context + index + 2]
            for name, engine in engines.items():
                began = time.perf_counter()
                logits = engine.feed(_only(position, [token], len(contexts)))
                seconds[name][position].append(time.perf_counter() - began)
                losses[name][position].append(_loss(logits, target))
    return {
        name: [
            Decoded(median(times), fmean(lost))
            for times, lost in zip(seconds[name], losses[name], strict=True)
        ]
        for name in engines
    }


def _loss(logits: Logits, target: int) -> float:
    row = np.asarray(logits[0], np.float64)
    peak = float(row.max())
    return peak + math.log(float(np.exp(row - peak).sum())) - float(row[target])


def _kv_bytes(engine: OwnLogits, windows: Sequence[int], context: int) -> int:
    """Return the KV cache of a group that serves one sequence of that length."""
    blocks = -(-context // BLOCK_SIZE)
    least = least_blocks(max(windows), EngineRunConfig.token_budget, 1)
    sliding = sliding_blocks(blocks, least) if any(windows) else 0
    return engine.backend.cache_bytes(PoolSizes(blocks, sliding))
