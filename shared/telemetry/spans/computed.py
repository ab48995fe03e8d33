"""What a group computed between two moments of a timeline that carry its totals. Pure."""

from collections.abc import Mapping

_PARTS = ("linears_s", "attention_s", "collectives_s", "sampling_s", "masks_s")


def computed_between(
    first: Mapping[str, str | int | float], last: Mapping[str, str | int | float]
) -> dict[str, str | int | float]:
    """Returns the steps, their time on rank 0 in ms, and shares of that time, of all requests together.

    Args:
        first: The totals at a sequence's admission.
        last: Those at its last token.
    """
    grown = {
        name: value - before
        for name, value in last.items()
        if isinstance(value, int | float) and isinstance(before := first.get(name), int | float)
    }
    shown: dict[str, str | int | float] = {"steps": int(grown.get("steps", 0))}
    compute_s = grown.get("compute_s", 0.0)
    if compute_s > 0:
        shown["computed_ms"] = round(compute_s * 1000, 3)
        shown |= {name[:-2]: f"{grown.get(name, 0.0) / compute_s:.0%}" for name in _PARTS if grown.get(name)}
    return shown
