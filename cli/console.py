"""The two consoles, the error that ends a command, and the report of a starting stack.

A terminal gets a live table, a pipe or a log gets one plain line per event.
"""

import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn, Protocol

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from cli.visible import visible

_BLANK_ENDS = re.compile(r"[ \t]+(?=\n|$)")
PIPE_WIDTH = 240  # of tables that a program reads, so that ids stay whole


class PlainConsole(Console):
    """Shows text as it is: control characters are spelled out, and nothing is markup.

    This holds for all that is printed, because any string may come from a file, a service or a caller.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """See `Console`. Segments with `control` are the library's own movements of the cursor."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))

    def print(self, *objects: Any, **options: Any) -> None:
        """See `Console`. Into a file or a pipe, tables have no blanks at the ends of lines."""
        if self.is_terminal or all(isinstance(one, str) for one in objects):
            super().print(*objects, **options)
            return
        with self.capture() as captured:
            super().print(*objects, **options)
        self.file.write(_BLANK_ENDS.sub("", captured.get()))

    def leave_terminal(self) -> None:
        """Print without styles from now on: its file has become a log."""
        self._color_system = None


def _out() -> PlainConsole:
    wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return PlainConsole(width=PIPE_WIDTH if wide else None)


out = _out()
err = PlainConsole(stderr=True)


INTERRUPTED = 130  # the exit code of a command that Ctrl-C ended


class CommandError(Exception):
    """Ends the command: the text goes to stderr, `exit_code` to the shell."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def fail(message: str, exit_code: int = 1) -> NoReturn:
    """Raise `CommandError`; the text says what is wrong and what to do."""
    raise CommandError(message, exit_code)


def called_as() -> str:
    """Return how to call this command: as it was called, or by its name where PATH finds the same file."""
    given = sys.argv[0]
    if Path(given).name != "ryz":  # `python -m cli`
        return "ryz"
    found = shutil.which("ryz")
    return "ryz" if found and Path(found).resolve() == Path(given).resolve() else given


def make_writable(directory: Path, option: str) -> None:
    """Make the directory; fails, naming the option, when it cannot be made or written to."""
    problem = ""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not os.access(directory, os.W_OK | os.X_OK):
            problem = "not writable"
    except OSError as error:
        problem = error.strerror or str(error)
    if problem:
        fail(f"The directory {directory} cannot be used: {problem}. Name another with `{option}`.")


class StartReport(Protocol):
    """Receives the events of a start."""

    def waiting(self, name: str) -> None:
        """Called when that service was started."""
        ...

    def ready(self, name: str) -> None:
        """Called once when that service is ready."""
        ...

    def note(self, text: str) -> None:
        """Called for any other event, with a line of text."""
        ...


class PlainReport:
    """One line per event."""

    def __init__(self, console: Console = out) -> None:
        self._console = console
        self._began = time.monotonic()

    def waiting(self, name: str) -> None:
        """Print nothing: the line comes when the service is ready."""

    def ready(self, name: str) -> None:
        """Print the name and the seconds since the start."""
        self._console.print(
            f"{name} ready after {time.monotonic() - self._began:.1f} s", markup=False, soft_wrap=True
        )

    def note(self, text: str) -> None:
        """Print the text, in a file behind the time."""
        if not self._console.is_terminal:
            text = f"{datetime.now(UTC).isoformat(timespec='milliseconds')} {text}"
        self._console.print(text, markup=False, soft_wrap=True)


class LiveReport:
    """A table that is redrawn while the services come up, one row each."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._began = time.monotonic()
        self._rows: dict[str, float | None] = {}

    def waiting(self, name: str) -> None:
        """Show the service with a spinner."""
        self._rows[name] = None
        self._live.update(self._table())

    def ready(self, name: str) -> None:
        """Show the service with the seconds it took."""
        self._rows[name] = time.monotonic() - self._began
        self._live.update(self._table())

    def note(self, text: str) -> None:
        """Print the text above the table."""
        self._live.console.print(text, markup=False, soft_wrap=True)

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for name, took in self._rows.items():
            mark = Spinner("dots", style="cyan") if took is None else Text("✓", style="green")
            table.add_row(mark, name, "starting" if took is None else f"{took:.1f} s")
        return table


@contextmanager
def start_report() -> Iterator[StartReport]:
    """Give the report that fits the terminal; the table disappears at the end, `note` works on."""
    if not out.is_terminal:
        yield PlainReport()
        return
    with Live(console=out, transient=True, refresh_per_second=10) as live:
        yield LiveReport(live)
