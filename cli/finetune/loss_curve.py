"""Draws a loss curve as text. Pure."""

from collections.abc import Sequence
from itertools import pairwise

_HEIGHT, _WIDTH = 8, 60
_LEVELS = " ▁▂▃▄▅▆▇█"


def draw_curve(losses: Sequence[float]) -> list[str]:
    """Return the lines of a curve from 0 to the largest loss; each column is the mean of some steps."""
    if not losses:
        return []
    columns = min(_WIDTH, len(losses))
    bounds = [round(column * len(losses) / columns) for column in range(columns + 1)]
    parts = [losses[begin:end] for begin, end in pairwise(bounds)]
    means = [sum(part) / len(part) for part in parts]
    top = max(*means, 1e-9)
    lines = []
    for row in range(_HEIGHT, 0, -1):
        filled = (mean / top * _HEIGHT - (row - 1) for mean in means)
        bar = "".join(_LEVELS[max(0, min(8, round(8 * one)))] for one in filled)
        label = f"{top:7.3f}" if row == _HEIGHT else f"{0:7.3f}" if row == 1 else " " * 7
        lines.append(f"{label} │{bar}")
    return [*lines, f"        └{'─' * columns} step {len(losses)}"]
