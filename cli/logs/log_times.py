"""Reads the times that people write: so long ago, or a moment. Pure."""

import re
from datetime import datetime

from cli.console import fail

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def parse_since(text: str, now_s: float) -> float:
    """The moment in seconds since 1970; an empty text stands for the beginning.

    Raises:
        CommandError: It is neither a span nor a time.
    """
    if not text:
        return 0.0
    span = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if span is not None:
        return now_s - float(span[1]) * _UNITS_S[span[2]]
    try:
        return datetime.fromisoformat(text).timestamp()  # without a zone, the machine's
    except ValueError:
        fail(f"`--since` is a span such as 90s, 10m, 2h or 1d, or a time in ISO 8601, got {text!r}.", 2)
