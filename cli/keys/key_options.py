"""The options that describe a key, beside its limits."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.console import fail
from cli.tenants.values import expiry

if TYPE_CHECKING:
    from shared.messages import KeyRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOptions:
    """A key; what is not given stays as it is."""

    label: Annotated[str | None, typer.Option(help="A name for people.", show_default=False)] = None
    model: Annotated[
        list[str], typer.Option(help="A model that it may use; may be repeated.", show_default=False)
    ] = field(default_factory=list)
    any_model: Annotated[bool, typer.Option("--any-model", help="It may use all models of its tenant.")] = (
        False
    )
    api: Annotated[
        list[str],
        typer.Option(help="chat, completions, responses, messages, embeddings, tokens, sessions, files, "
                          "batches or models; may be repeated.", show_default=False),
    ] = field(default_factory=list)  # fmt: skip
    any_api: Annotated[bool, typer.Option("--any-api", help="It may use all APIs.")] = False
    read_only: Annotated[
        bool | None,
        typer.Option("--read-only/--read-write", help="Whether it may only read.", show_default=False),
    ] = None
    expires: Annotated[
        str, typer.Option(help="When it ends from now on, such as 30d or 12h, or never.", show_default=False)
    ] = ""

    def applied_to(self, record: "KeyRecord") -> "KeyRecord":
        """Return the record with what was given."""
        from typing import get_args  # noqa: PLC0415

        from msgspec.structs import replace  # noqa: PLC0415 (keeps `ryz --help` quick)

        from shared.messages.tenants.accounts import Api  # noqa: PLC0415

        for name in self.api:
            if name not in get_args(Api):
                fail(f"--api: {name!r} is none of {', '.join(get_args(Api))}.", 2)
        of_scopes: dict[str, Any] = {
            "models": self.model or ([] if self.any_model else None),
            "apis": self.api or ([] if self.any_api else None),
            "read_only": self.read_only,
        }
        scopes = replace(record.scopes, **_given(of_scopes))
        of_key: dict[str, Any] = {
            "label": self.label,
            "expires_s": expiry("--expires", self.expires) if self.expires else None,
        }
        return replace(record, scopes=scopes, **_given(of_key))


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
