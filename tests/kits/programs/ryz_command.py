"""Runs commands of `ryz` in a thread, while services of the test run in its event loop."""

import asyncio
import sys
from collections.abc import Awaitable, Callable

import structlog
from typer.testing import CliRunner, Result

from cli.__main__ import app
from cli.console import CommandError

Ryz = Callable[..., Awaitable[Result]]


def ryz_command(group: str, *options: str) -> Ryz:
    """Returns what runs the commands of a group with these options; a test may give others after them."""

    async def run(*args: str, stdin: bytes | None = None) -> Result:
        command, *others = args
        words = [group, command, *options, *others]
        # services of this process log meanwhile, which is no output of the command
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.__stderr__))
        result: Result = await asyncio.to_thread(CliRunner().invoke, app, words, input=stdin)
        return result

    return run


def refused(result: Result, exit_code: int) -> str:
    """What a command said that ended with that exit code."""
    assert isinstance(result.exception, CommandError), result.output
    assert result.exception.exit_code == exit_code, result.exception
    return str(result.exception)
