"""`ryz bus-users` of earlier releases: says which command of `ryz keys` does the same now."""

import typer

from cli.command_groups import command_group

WRONG_USAGE = 2
_NOW = {
    "add": "`ryz keys create --bus-user NAME --tenant TENANT`",
    "list": "`ryz keys list`",
    "remove": "`ryz keys revoke NAME`",
    "render": "`ryz keys broker-config`",
}
app = command_group("Moved to `ryz keys`: bus users are managed like keys (docs/tenants.md).")


def _add_former(name: str, now: str) -> None:
    @app.command(name, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
    def refuse(context: typer.Context) -> None:
        from cli.console import fail  # noqa: PLC0415 (keeps `ryz --help` quick)

        del context
        fail(
            f"`ryz bus-users {name}` is {now} now. Users that were added with it became records at the start "
            "of `ryz up`.",
            WRONG_USAGE,
        )

    refuse.__doc__ = f"Now {now}."


for _name, _now in _NOW.items():
    _add_former(_name, _now)
