"""Finds the stack that a command means where no state directory was named."""

import os
from contextlib import suppress
from pathlib import Path

import typer

from cli.console import CommandError, fail
from cli.stack.host.known_stacks import recorded_stacks
from cli.stack.state import DEFAULT_DIR, StackState, StateDir

_ELSEWHERE = ("RYZ_URL", "RYZ_NATS_URL")  # these say where a stack is, if none is up in this folder


def nearest_stack(context: typer.Context, parameter: typer.CallbackParam, value: Path | None) -> Path | None:
    """Return the state directory to use: as given, else of this folder, else of the one stack that is up.

    A callback of `--state-dir`. An address that was given, also in the environment, comes before other
    folders.

    Raises:
        CommandError: Several stacks are up elsewhere, and none here.
    """
    source = context.get_parameter_source(parameter.name or "")
    if source is not None and source.name != "DEFAULT":
        return value
    if any(context.params.get(name) for name in ("url", "nats_url")) or any(map(os.environ.get, _ELSEWHERE)):
        return value
    if StateDir(DEFAULT_DIR).read() is not None:
        return value
    running = stacks_elsewhere()
    if len(running) > 1:
        there = ", ".join(f"{state.url} in {path}" for path, state in running)
        fail(
            f"No stack is up in this folder, and several are elsewhere: {there}. Name one: `--state-dir`.", 2
        )
    return running[0][0] if running else value


def stacks_elsewhere() -> list[tuple[Path, StackState]]:
    """Return the stacks on record that are up, with their state directories."""
    found = list[tuple[Path, StackState]]()
    for path in recorded_stacks():
        with suppress(CommandError):  # the directory is another user's by now
            if (state := StateDir(path).read()) is not None:
                found.append((path, state))
    return found
