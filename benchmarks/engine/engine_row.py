"""Turns the repeats of one batch size into a row of the report.

Rates are medians over the repeats, the split of a step is the mean over all their steps.
"""

from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.engine.driver import Run
from benchmarks.peers.base import Timing


def rates(runs: Sequence[Run], prompt: int) -> dict[str, float]:
    """Tokens per second of the engine: of the prompts, and of decoding with all sequences."""
    batch = len(runs[0].tokens)
    return {
        "prefill_tokens_per_s": round(median(batch * prompt / run.prefill_s for run in runs), 1),
        "decode_tokens_per_s": round(median(run.decode_tokens / run.decode_s for run in runs), 1),
    }


def peer_rates(timings: Sequence[Timing], prompt: int) -> dict[str, float]:
    """The same of a peer, whose sequences get their first tokens together."""
    batch, later = len(timings[0].tokens), len(timings[0].tokens[0]) - 1
    return {
        "prefill_tokens_per_s": round(median(batch * prompt / timing.prefill_s for timing in timings), 1),
        "decode_tokens_per_s": round(median(batch * later / timing.decode_s for timing in timings), 1),
    }


def step_figures(runs: Sequence[Run]) -> dict[str, Any]:
    """Where a decode step's time goes.

    `parts` are milliseconds of rank 0: `other` is computing that is in none of the parts before it, `leader`
    is what the rank waited for its next plan. `step_ms` are the times between results.
    """
    steps = [step for run in runs for step in run.steps]
    gaps = sorted(gap for run in runs for gap in run.step_s)
    sums = {
        "linears": sum(step.linears_s for step in steps),
        "attention": sum(step.attention_s for step in steps),
        "collectives": sum(step.collectives_s for step in steps),
        "sampling": sum(step.sampling_s for step in steps),
    }
    computed = sum(step.compute_s for step in steps)
    sums["other"] = max(0.0, computed - sum(sums.values()))
    sums["leader"] = sum(step.wait_s for step in steps)
    whole = computed + sums["leader"]
    return {
        "collectives_share": round(sums["collectives"] / whole, 4) if whole else 0.0,
        "step_ms": {"p50": _ms(quantile(gaps, 0.5)), "p99": _ms(quantile(gaps, 0.99))},
        "parts": {name: _ms(value / len(steps)) for name, value in sums.items()},
    }


def mean_step_s(runs: Sequence[Run]) -> float:
    """Seconds of a decode step, the median over the repeats."""
    return median(run.decode_s / len(run.steps) for run in runs)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which that share of the sorted values lies (nearest rank)."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 4)
