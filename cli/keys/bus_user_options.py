"""The options of a key that is a bus user, beside those of every key."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.console import fail

if TYPE_CHECKING:
    from shared.messages import KeyRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class BusUserOptions:
    """A bus user; what is not given stays as it is."""

    max_rps: Annotated[
        float | None,
        typer.Option(
            min=0, max=1e6, help="Requests a second of a bus user; 0: no limit.  [default: the router's]"
        ),
    ] = None
    max_priority: Annotated[
        int | None,
        typer.Option(min=-10, max=10, help="Of the requests of a bus user.  [default: the router's]"),
    ] = None
    suspended: Annotated[
        bool | None,
        typer.Option("--suspend/--resume", help="Whether a bus user is refused.", show_default=False),
    ] = None

    def applied_to(self, record: "KeyRecord") -> "KeyRecord":
        """Return the record with what was given."""
        from msgspec.structs import replace  # noqa: PLC0415 (keeps `ryz --help` quick)

        of_user: dict[str, Any] = {
            "max_rps": self.max_rps,
            "max_priority": self.max_priority,
            "suspended": self.suspended,
        }
        given = {name: value for name, value in of_user.items() if value is not None}
        if not given:
            return record
        if record.bus_user is None:
            fail("--max-rps, --max-priority and --suspend are of bus users (`--bus-user NAME`).", 2)
        return replace(record, bus_user=replace(record.bus_user, **given))
