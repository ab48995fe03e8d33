"""Turns the repeats of one batch size into a row of the report.

Rates are medians over the repeats, the split of a step is the mean over all their steps.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.engine.driver import Run
from benchmarks.lib.measuring import SHARES, milliseconds, percentile
from benchmarks.peers.base import Timing
from benchmarks.peers.contest import PeerType


def rates(runs: Sequence[Run], prompt: int) -> dict[str, float]:
    """Return tokens a second of the engine: of the prompts, and of decoding with all sequences."""
    batch = len(runs[0].tokens)
    return {
        "prefill_tokens_per_s": round(median(batch * prompt / run.prefill_s for run in runs), 1),
        "decode_tokens_per_s": round(median(run.decode_rate for run in runs), 1),
    }


def peer_rows(
    row: dict[str, Any],
    types: Sequence[PeerType],
    timings: Mapping[str, Sequence[Timing]],
    refusals: Mapping[str, str],
) -> dict[str, Any]:
    """Return what each peer has beside the engine of `row`.

    Args:
        types: The peers' types, measured or refused.
        timings: Runs of a type, by its name.
        refusals: Why a type did not run, by its name.

    Returns:
        By the peer's name: its best rates with the type of each (`prefill_type`, `decode_type`), how many
        times as fast we are, and the rates of every type (`types`). A `note` says why some did not run.
    """
    found: dict[str, Any] = {}
    for name in dict.fromkeys(one.peer.name for one in types):
        own = [one for one in types if one.peer.name == name]
        measured = {one.kind: peer_rates(row, timings[one.name]) for one in own if one.name in timings}
        notes = list(dict.fromkeys(refusals[one.name] for one in own if one.name in refusals))
        best: dict[str, Any] = {}
        for rate in ("prefill", "decode"):
            key = f"{rate}_tokens_per_s"
            kind = max(measured, key=lambda kind: measured[kind][key], default=None)
            fastest = None if kind is None else measured[kind][key]
            best |= {key: fastest, f"{rate}_type": kind}
            if fastest is not None:
                best[f"{rate}_speedup"] = round(row[key] / fastest, 2)
        found[name] = best | {"types": measured} | ({"note": "; ".join(notes)} if notes else {})
    return found


def peer_rates(row: dict[str, Any], timings: Sequence[Timing]) -> dict[str, float]:
    """Return a peer's rates, as `rates` has ours; all its sequences get their first token at once."""
    batch, later = len(timings[0].tokens), len(timings[0].tokens[0]) - 1
    return {
        "prefill_tokens_per_s": round(
            median(batch * row["prompt"] / timing.prefill_s for timing in timings), 1
        ),
        "decode_tokens_per_s": round(median(batch * later / timing.decode_s for timing in timings), 1),
    }


def step_figures(runs: Sequence[Run]) -> dict[str, Any]:
    """Return where a decode step's time goes.

    `parts` are milliseconds of rank 0: `other` is computing that is in none of the parts before it, `leader`
    is the rank's wait for its next plan. `step_ms` are the times between results.
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
        "step_ms": {which: milliseconds(percentile(gaps, share)) for which, share in SHARES.items()},
        "parts": {name: milliseconds(value / len(steps)) for name, value in sums.items()},
    }


def mean_step_s(runs: Sequence[Run]) -> float:
    """Return the seconds of a decode step, the median over the repeats."""
    return median(run.decode_s / len(run.steps) for run in runs)
