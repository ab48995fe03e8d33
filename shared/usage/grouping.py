"""Adds sums of usage up by day, tenant, key or model, and shows them as rows, JSON or CSV. Pure."""

import csv
import io
import re
from collections.abc import Sequence
from datetime import date

from shared.errors import InvalidRequest
from shared.messages import UsageSum

GROUPS = ("day", "tenant", "key", "model")
COUNTED = (
    "requests", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "embedded_tokens",
    "queue_ms", "compute_ms", "money",
)  # fmt: skip
_FIELDS = {"day": "day", "tenant": "tenant", "key": "key_id", "model": "model"}
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
Row = dict[str, str | int]


def groups_of(text: str) -> tuple[str, ...]:
    """Returns what to group by, from a list with commas.

    Raises:
        InvalidRequest: It names something else.
    """
    wanted = [part.strip() for part in text.split(",") if part.strip()]
    if not wanted or any(one not in GROUPS for one in wanted):
        raise InvalidRequest(
            f"`by` is a list with commas of {', '.join(GROUPS)}, got {text[:64]!r}", param="by"
        )
    return tuple(one for one in GROUPS if one in wanted)


def check_day(text: str, param: str) -> str:
    """Returns the day; raises `InvalidRequest` for a text that is none."""
    if text:
        try:
            if _DAY.fullmatch(text) is None:
                raise ValueError
            date.fromisoformat(text)
        except ValueError:
            raise InvalidRequest(
                f"`{param}` is a day such as 2026-01-31, got {text[:32]!r}", param=param
            ) from None
    return text


def group_sums(sums: Sequence[UsageSum], by: Sequence[str]) -> list[Row]:
    """Returns a row for each group, in the order of its names."""
    totals: dict[tuple[str, ...], list[int]] = {}
    for one in sums:
        key = tuple(getattr(one, _FIELDS[group]) for group in by)
        total = totals.setdefault(key, [0] * len(COUNTED))
        for index, name in enumerate(COUNTED):
            total[index] += getattr(one, name)
    return [
        dict(zip((_FIELDS[group] for group in by), key, strict=True)) | dict(zip(COUNTED, total, strict=True))
        for key, total in sorted(totals.items())
    ]


def csv_of(rows: Sequence[Row], by: Sequence[str]) -> str:
    """Returns the rows with a line of names. Text that a spreadsheet would compute begins with a quote."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = [*(_FIELDS[group] for group in by), *COUNTED]
    writer.writerow(names)
    for row in rows:
        writer.writerow([_safe(row[name]) for name in names])
    return out.getvalue()


def _safe(value: str | int) -> str | int:
    return f"'{value}" if isinstance(value, str) and value[:1] in {"=", "+", "-", "@"} else value
