"""The options that describe a tenant, beside its limits."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from shared.messages import TenantRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantOptions:
    """A tenant; what is not given stays as it is."""

    weight: Annotated[
        float | None,
        typer.Option(min=0.01, max=100, help="Its share of busy groups, beside others.", show_default=False),
    ] = None
    time_zone: Annotated[
        str, typer.Option(help="Where its days and months begin at midnight.", show_default=False)
    ] = ""
    model: Annotated[
        list[str], typer.Option(help="A model that it may use; may be repeated.", show_default=False)
    ] = field(default_factory=list)
    any_model: Annotated[bool, typer.Option("--any-model", help="It may use all models.")] = False
    session_days: Annotated[
        int | None, typer.Option(min=0, max=3650, help="How long sessions are kept.", show_default=False)
    ] = None
    response_days: Annotated[
        int | None, typer.Option(min=0, max=3650, help="How long responses are kept.", show_default=False)
    ] = None
    file_days: Annotated[
        int | None, typer.Option(min=0, max=3650, help="How long files are kept.", show_default=False)
    ] = None
    batch_days: Annotated[
        int | None,
        typer.Option(min=0, max=3650, help="How long batches and their files are kept.", show_default=False),
    ] = None
    usage_days: Annotated[
        int | None,
        typer.Option(
            min=0, max=3650, help="How long sums of usage are kept, 36 or more.", show_default=False
        ),
    ] = None
    record_days: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=3650,
            help="How long records of single requests are kept, 2 or more.",
            show_default=False,
        ),
    ] = None
    note: Annotated[str | None, typer.Option(help="For people.", show_default=False)] = None

    def applied_to(self, record: "TenantRecord") -> "TenantRecord":
        """Return the record with what was given."""
        from msgspec.structs import replace  # noqa: PLC0415 (keeps `ryz --help` quick)

        given: dict[str, Any] = {
            "weight": self.weight,
            "time_zone": self.time_zone or None,
            "models": self.model or ([] if self.any_model else None),
            "session_days": self.session_days,
            "response_days": self.response_days,
            "file_days": self.file_days,
            "batch_days": self.batch_days,
            "usage_days": self.usage_days,
            "record_days": self.record_days,
            "note": self.note,
        }
        return replace(record, **{name: value for name, value in given.items() if value is not None})
