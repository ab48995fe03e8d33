"""Measures a decoded token over long contexts, exact and as settings shorten what it reads.

The text is prose that ships with Python. Each case has a KV cache of its own and reads the same tokens: the
prose up to a context in large chunks, then some tokens one by one. These are timed, in turns with those of
the other cases, and their likelihoods give the perplexity.
"""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import pairwise
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np

from benchmarks.lib.measuring import Progress
from benchmarks.plans import ContextPlan, model_name
from benchmarks.quality.divergence import Logits
from benchmarks.quality.own_logits import OwnLogits
from benchmarks.quality.scored_texts import text_windows
from services.worker.engine.config.read_config import read_config
from services.worker.load_model import load_model
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
    compared = len(cases(plan))
    return compared + len(plan.contexts) * (compared + 1)


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
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        engines: dict[str, OwnLogits] = {}
        for case in cases(plan):
            progress(f"loading: {case.name}")
            engines[case.name] = engine = stack.enter_context(
                closing(
                    OwnLogits(
                        plan.model,
                        plan.precision,
                        plan.threads,
                        sequences=1,
                        length=length,
                        attention=case.attention,
                        kv_cold=case.kv_cold,
                    )
                )
            )
            engine.begin(1)
        fed, shortest = 0, dict[str, float]()
        for context in contexts:
            for name, engine in engines.items():
                progress(f"{name}: the prompt up to {context:,} tokens")
                for begin in range(fed, context, _CHUNK):
                    engine.feed([text[begin : min(context, begin + _CHUNK)]])
            progress(f"{plan.tokens} tokens at {context:,}")
            fed = context + plan.tokens
            found = decode(engines, text[context : fed + 1])
            exact = found[_EXACT]
            for name, (seconds, loss) in found.items():
                rows.append(
                    {
                        "context": context,
                        "case": name,
                        "token_ms": round(1e3 * seconds, 3),
                        "of_exact": round(seconds / exact.seconds, 3),
                        "of_shortest": round(seconds / shortest.setdefault(name, seconds), 3),
                        "perplexity": math.exp(loss),
                        "perplexity_change": math.exp(loss - exact.loss) - 1,
                        "kv_bytes": _kv_bytes(engines[name], windows, context),
                    }
                )
        kernels = {name: engine.name for name, engine in engines.items()}
    return {"model": model_name(plan.model), "tokens": plan.tokens, "kernels": kernels, "rows": rows}


def decode(engines: Mapping[str, OwnLogits], text: Sequence[int]) -> dict[str, Decoded]:
    """Feed all tokens of the text but the last one by one to all engines in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    losses: dict[str, list[float]] = {name: [] for name in engines}
    for token, target in pairwise(text):
        for name, engine in engines.items():
            began = time.perf_counter()
            logits = engine.feed([[token]])
            seconds[name].append(time.perf_counter() - began)
            losses[name].append(_loss(logits, target))
    return {name: Decoded(median(seconds[name]), fmean(losses[name])) for name in engines}


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
