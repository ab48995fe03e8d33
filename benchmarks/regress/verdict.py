"""Judges the rounds of two commits: which figures got worse beyond what noise explains. Pure.

Each round gives one ratio for a figure, of two runs that followed one another. Ratios of a busy machine
have outliers and no known distribution. Only this is known: without a change, either of the two is as
likely to be the slower one, so that the logarithms of the ratios are symmetric. Their centre and its bounds
are therefore those of the signed-rank test (M. Hollander, D. A. Wolfe, E. Chicken, Nonparametric
Statistical Methods, 3rd ed., sections 3.2 and 3.3): the median of all means of two, and order statistics of
these.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations_with_replacement
from statistics import median
from typing import Literal

from benchmarks.compare.report_figures import Rows, more_is_better

# how often, at most, a bound is on the wrong side of the centre: 8 rounds are the fewest that can tell
DOUBT = 0.005
LEAST_ROUNDS = 8
Verdict = Literal["worse", "better", "same", "unclear"]


@dataclass(frozen=True, slots=True)
class JudgedFigure:
    """A figure of both commits.

    Attributes:
        base: Its median at the base.
        new: Its median at the other commit.
        ratio: Centre of the rounds' ratios, above 1 where the new commit is worse.
        least: Lower bound of that centre.
        most: Upper bound.
        verdict: "unclear" if the bounds allow a loss beyond the margin, and none.
    """

    row: str
    figure: str
    base: float
    new: float
    ratio: float
    least: float
    most: float
    verdict: Verdict


def bound_index(rounds: int) -> int:
    """Return which of the sorted means of two ratios, from 0, is the lower bound of their centre."""
    if rounds < LEAST_ROUNDS:
        raise ValueError(f"{rounds} rounds say nothing, {LEAST_ROUNDS} are the fewest")
    ways = [1]  # in which the ranks of the gains, of 1 to `rounds`, sum up to the index
    for rank in range(1, rounds + 1):
        more = [0] * rank + ways
        ways = [one + (ways[at] if at < len(ways) else 0) for at, one in enumerate(more)]
    below = list(accumulate(ways))
    return bisect_right(below, DOUBT * 2**rounds) - 1


def judge(base: Sequence[Rows], new: Sequence[Rows], margin: float) -> list[JudgedFigure]:
    """Judge all figures that every round of both commits has.

    Args:
        base: The figures of each round at the base, at least `LEAST_ROUNDS`.
        new: Those of the other commit in the same rounds.
        margin: Loss that is allowed, as a share.
    """
    names = [
        (row, figure)
        for row, figures in base[0].items()
        for figure in figures
        if all(figure in rows.get(row, {}) for rows in (*base, *new))
    ]
    found = []
    for row, figure in names:
        pairs = [(old[row][figure], now[row][figure]) for old, now in zip(base, new, strict=True)]
        found.append(_judged(row, figure, pairs, margin))
    return found


def _judged(row: str, figure: str, pairs: Iterable[tuple[float, float]], margin: float) -> JudgedFigure:
    pairs = list(pairs)
    old, now = (median(one[side] for one in pairs) for side in (0, 1))
    ratios = [_ratio(figure, *pair) for pair in pairs]
    means = sorted(math.sqrt(one * other) for one, other in combinations_with_replacement(ratios, 2))
    index = bound_index(len(ratios))
    least, most = means[index], means[-1 - index]
    verdict: Verdict = "unclear"
    if least > 1 + margin:
        verdict = "worse"
    elif most < 1 / (1 + margin):
        verdict = "better"
    elif most <= 1 + margin:
        verdict = "same"
    return JudgedFigure(row, figure, old, now, median(means), least, most, verdict)


def _ratio(figure: str, old: float, now: float) -> float:
    worse, better = (old, now) if more_is_better(figure) else (now, old)
    if worse == better:
        return 1.0
    return worse / better if better else math.inf


def as_rows(figures: Iterable[JudgedFigure]) -> list[Mapping[str, object]]:
    """Return what a file of results has of each figure."""
    return [
        {
            "row": one.row, "figure": one.figure, "base": one.base, "new": one.new,
            "ratio": round(one.ratio, 4), "least": round(one.least, 4), "most": round(one.most, 4),
            "verdict": one.verdict,
        }
        for one in figures
    ]  # fmt: skip
