"""The options of a key that is a bus user, beside those of every key."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.console import fail

if TYPE_CHECKING:
    from shared.messages import KeyRecord

ROUTERS_OWN = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class BusUserOptions:
    """A bus user; what is not given stays as it is."""

    max_rps: Annotated[
        str,
        typer.Option(
            metavar="NUMBER|default",
            help="Requests a second of a bus user; 0: no limit, `default`: as routers' settings say.",
            show_default=False,
        ),
    ] = ""
    max_priority: Annotated[
        str,
        typer.Option(
            metavar="NUMBER|default",
            help="The highest of its requests, -10 to 10; `default`: as routers' settings say.",
            show_default=False,
        ),
    ] = ""
    suspended: Annotated[
        bool | None,
        typer.Option("--suspend/--resume", help="Whether a bus user is refused.", show_default=False),
    ] = None

    def applied_to(self, record: "KeyRecord") -> "KeyRecord":
        """Return the record with what was given."""
        from msgspec.structs import replace  # noqa: PLC0415 (keeps `ryz --help` quick)

        given: dict[str, Any] = {}
        if self.max_rps:
            given["max_rps"] = _number("--max-rps", self.max_rps, float, 0, 1e6)
        if self.max_priority:
            given["max_priority"] = _number("--max-priority", self.max_priority, int, -10, 10)
        if self.suspended is not None:
            given["suspended"] = self.suspended
        if not given:
            return record
        if record.bus_user is None:
            fail("--max-rps, --max-priority and --suspend are of bus users (`--bus-user NAME`).", 2)
        return replace(record, bus_user=replace(record.bus_user, **given))


def _number(option: str, text: str, kind: type[float], least: float, most: float) -> float | None:
    """Return the number that an option names; None: that of the routers' settings."""
    if text == ROUTERS_OWN:
        return None
    try:
        number = kind(text)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        what = "a whole number" if kind is int else "a number"
        fail(f"`{option} {text[:32]}`: give {what} from {least:g} to {most:g}, or `{ROUTERS_OWN}`.", 2)
    return number
