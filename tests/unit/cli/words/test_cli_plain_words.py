"""What `--help` and wrong values of every command look like, and how tables come out of a pipe."""

import io
import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from rich.table import Table
from typer.testing import CliRunner

from cli.__main__ import app
from cli.console import PlainConsole


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*path, name))


PATHS = sorted(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_help_names_no_types_of_python(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*path, "--help"]).output
    assert "Usage: " in shown
    assert not re.search(r"<(str|int|float|path|file|dir|bool)\b|float range|int range", shown)
    assert "Examples:" not in shown, "examples are lines of their own, without a heading"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["up", "--port", "99999"], "99999 is not between 0 and 65,535."),
        (["up", "--groups", "x\x1b"], "x\\x1b is not a whole number between 0 and 64."),
        (["up", "--memory", "much"], "much is not a number 0 or more."),
        (["batch", "list", "--limit", "0"], "0 is not 1 or more."),
        (["up", "--engine", "foo"], "'foo' is not one of 'torch', 'null', 'vllm'."),
        (["bench", "serving", "--duration", "x"], "x is not a number 0.2 or more."),
    ],
)
def test_a_wrong_value_is_explained_in_plain_words(given: list[str], said: str) -> None:
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 2
    assert f": {said}" in " ".join(done.output.split())
    assert "Input should" not in done.output


def test_tables_in_a_pipe_have_no_blanks_at_the_ends_of_lines() -> None:
    table = Table(box=None, show_header=False)
    table.add_row("a", "b" * 30)
    table.add_row("c", "d")
    piped = io.StringIO()
    PlainConsole(file=piped, width=200).print(table)
    assert piped.getvalue().splitlines() == [" a  " + "b" * 30, " c  d"]
    text = io.StringIO()
    PlainConsole(file=text, width=200).print("said ", end="")
    assert text.getvalue() == "said ", "text is not touched"


def test_a_console_whose_terminal_is_left_writes_no_escapes() -> None:
    file = io.StringIO()
    console = PlainConsole(file=file, force_terminal=True, color_system="standard")
    console.print("before", style="red")
    console.leave_terminal()
    console.print("after", style="red")
    assert file.getvalue() == "\x1b[31mbefore\x1b[0m\nafter\n"
