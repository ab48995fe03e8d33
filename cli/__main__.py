"""The `ryz` command: names the subcommands and turns failures into one line and an exit code.

Each command lives in a file of its own and imports what it needs only when it runs: `--help` is quick.
"""

import sys
from typing import Any

import typer
from typer.core import TyperGroup

from cli.batch.commands import app as batch
from cli.bus_users.commands import app as bus_users
from cli.chat.command import chat
from cli.console import INTERRUPTED, CommandError, err, out
from cli.explain.command import explain
from cli.finetune.command import finetune
from cli.groups.commands import app as groups
from cli.keys.commands import app as keys
from cli.logs.command import logs
from cli.models.commands import app as models
from cli.models.convert.quantize_command import quantize
from cli.plain_words import explain_value, name_values
from cli.profile.command import profile
from cli.sessions.commands import app as sessions
from cli.stack.compose.command import plan_containers
from cli.stack.up import down, up
from cli.status.command import status
from cli.tenants.commands import app as tenants
from cli.top.command import top
from cli.train_demo import train_demo
from cli.worker.command import worker


class LazyGroup(TyperGroup):
    """Loads `bench`, whose own commands are heavy to import, only when it is asked for.

    Help and errors of all commands are in plain words.
    """

    def invoke(self, ctx: Any) -> Any:
        """See click."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            explain_value(error)
            raise

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """See click."""
        return name_values(super().get_command(ctx, cmd_name))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """See click."""
        if args and args[0] == "bench":
            from cli.bench.commands import app as bench  # noqa: PLC0415

            return "bench", name_values(typer.main.get_command(bench)), args[1:]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="ryz",
    cls=LazyGroup,
    help="Serves language models over a message bus: start a stack, talk to it, look into it, measure it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (up, down, worker, chat, status, logs, explain, profile, top, train_demo, quantize, finetune):
    app.command(name=command.__name__.replace("_", "-"))(command)
app.command("plan-containers", hidden=True)(plan_containers)
app.add_typer(sessions, name="sessions")
app.add_typer(batch, name="batch")
app.add_typer(groups, name="groups")
app.add_typer(models, name="models")
app.add_typer(tenants, name="tenants")
app.add_typer(keys, name="keys")
app.add_typer(bus_users, name="bus-users", hidden=True)


@app.command("bench")
def _bench() -> None:
    """Measure the serving path, the engine and its parts; compare results."""


@app.command("version")
def _version() -> None:
    """Print the version."""
    from importlib.metadata import version  # noqa: PLC0415

    out.print(f"ryzanstein {version('ryzanstein')}", markup=False)


def main() -> None:
    """Run the command line; the entry point of `ryz`."""
    try:
        app()
    except CommandError as error:
        err.print(str(error), style="red", markup=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
