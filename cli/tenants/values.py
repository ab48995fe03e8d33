"""Reads values of options about tenants and keys: durations, sizes, limits. The limits are declared here."""

import re
import time
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.console import fail

if TYPE_CHECKING:
    from shared.messages import Limits

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_UNITS = {"": 1} | {
    f"{letter}{middle}": base**power
    for power, letter in enumerate("KMGT", 1)
    for middle, base in (("", 1000), ("I", 1024))
}
MAX_LIMIT = 2**53
Count = int | None


def _checked_count(value: Count) -> Count:
    """Refuse a count that no record can hold; `--help` names only the lower end of the range."""
    if value is not None and value > MAX_LIMIT:
        raise typer.BadParameter(f"{value} is more than {MAX_LIMIT:,}, the largest limit; 0 is no limit.")
    return value


_COUNT: dict[str, Any] = {"min": 0, "callback": _checked_count, "show_default": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitOptions:
    """Limits of a tenant or of a key. 0: no limit; those that are not given stay as they are."""

    requests_per_minute: Annotated[Count, typer.Option(help="Requests a minute; 0: no limit.", **_COUNT)] = (
        None
    )
    tokens_per_minute: Annotated[Count, typer.Option(help="Tokens a minute.", **_COUNT)] = None
    running: Annotated[Count, typer.Option(help="Requests at the same time.", **_COUNT)] = None
    tokens_per_day: Annotated[Count, typer.Option(help="Tokens a day.", **_COUNT)] = None
    tokens_per_month: Annotated[Count, typer.Option(help="Tokens a month.", **_COUNT)] = None
    money_per_day: Annotated[
        float | None, typer.Option(help="Money a day, by the prices.", min=0, show_default=False)
    ] = None
    money_per_month: Annotated[
        float | None, typer.Option(help="Money a month.", min=0, show_default=False)
    ] = None
    sessions: Annotated[Count, typer.Option(help="Stored sessions.", **_COUNT)] = None
    kv_bytes: Annotated[
        str, typer.Option(help="Bytes of KV in the store, such as 2GiB.", show_default=False)
    ] = ""
    batch_lines: Annotated[Count, typer.Option(help="Requests of batches that wait or run.", **_COUNT)] = None
    adapters: Annotated[Count, typer.Option(help="Registered adapters.", **_COUNT)] = None

    def applied_to(self, limits: "Limits") -> "Limits":
        """Return the limits with those that were given."""
        from shared.accounts.forms import limits_of  # noqa: PLC0415 (keeps `ryz --help` quick)

        given = {field.name: getattr(self, field.name) for field in fields(self)}
        given["kv_bytes"] = num_bytes("--kv-bytes", self.kv_bytes) if self.kv_bytes else None
        return limits_of(given, limits)


def seconds(option: str, text: str) -> int:
    """Read a duration such as 30d, 12h or 90s."""
    found = re.fullmatch(r"(\d{1,9})\s*([smhdw])", text.strip().lower())
    if found is None:
        fail(f"{option} takes a duration such as 30d, 12h or 90s, got {text!r}.", 2)
    return int(found[1]) * _SECONDS[found[2]]


def expiry(option: str, text: str) -> int:
    """Read when a key ends, as a duration from now on or `never`; return seconds since 1970, 0 for never."""
    return 0 if text.strip().lower() == "never" else int(time.time()) + seconds(option, text)


def num_bytes(option: str, text: str) -> int:
    """Read a size such as 500MB or 2GiB."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d+)?)\s*([KMGT]I?)?B?", text.strip().upper())
    if found is None:
        fail(f"{option} takes bytes such as 500MB or 2GiB, got {text!r}.", 2)
    return int(float(found[1]) * _UNITS[found[2] or ""])
