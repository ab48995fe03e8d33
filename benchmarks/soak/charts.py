"""Line charts as SVG, without a library: some lines over time, and marks at moments. Pure."""

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 900, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 170, 28, 32
_COLOURS = ("#1b6ca8", "#c8553d", "#2f855a", "#805ad5", "#b7791f", "#4a5568", "#d53f8c", "#319795")
Points = Sequence[tuple[float, float]]


def line_chart(
    title: str,
    lines: Mapping[str, Points],
    *,
    unit: str,
    until: float,
    marks: Sequence[float] = (),
    least: float = 0.0,
) -> str:
    """Returns the chart.

    Args:
        lines: Points of each line by its name: minutes and values; values that are no numbers are left out.
        unit: The unit in which values are shown, such as `MiB`.
        until: Minutes of the axis.
        marks: Minutes at which a fine line stands.
        least: The lower end of the values' axis.
    """
    values = [value for points in lines.values() for _, value in points if math.isfinite(value)]
    most = max([*values, least]) or 1.0
    most = most if most > least else least + 1.0
    until = until or 1.0

    def place(minute: float, value: float) -> str:
        x = _LEFT + (WIDTH - _LEFT - _RIGHT) * minute / until
        y = HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * (value - least) / (most - least)
        return f"{x:.1f},{y:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12"><title>{escape(title)}</title>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="18" font-size="14">{escape(title)}</text>',
    ]
    for mark in marks:
        top, bottom = place(mark, most), place(mark, least)
        parts.append(_line(f"{top} {bottom}", "#e2e8f0", 1))
    for step in range(5):
        value = least + (most - least) * step / 4
        left, right = place(0, value), place(until, value)
        x, y = left.split(",")
        parts.append(_line(f"{left} {right}", "#cbd5e0", 0.5))
        parts.append(f'<text x="{float(x) - 6}" y="{float(y) + 4}" text-anchor="end">{value:.4g}</text>')
    for step in range(6):
        minute = until * step / 5
        x = place(minute, least).split(",")[0]
        parts.append(f'<text x="{x}" y="{HEIGHT - 12}" text-anchor="middle">{minute:.4g} min</text>')
    for index, (name, points) in enumerate(lines.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        shown = " ".join(place(minute, value) for minute, value in points if math.isfinite(value))
        parts.append(_line(shown, colour, 1.5))
        label_y = _TOP + 14 + 16 * index
        label = f"{name}, {unit}" if len(lines) == 1 else name
        parts.append(f'<text x="{WIDTH - _RIGHT + 10}" y="{label_y}" fill="{colour}">{escape(label)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _line(points: str, colour: str, width: float) -> str:
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"/>'
