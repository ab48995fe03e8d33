"""The progress bar of a transfer, with rate and time left; without a terminal, a line every ten seconds."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from cli.console import err
from cli.models.store import in_bytes

LINE_EVERY_S = 10.0
PAUSES_S = (0.5, 1.0, 2.0)  # before another attempt, if the last one brought something


class TransferBar(Protocol):
    """Shows how far a transfer is."""

    def advance_to(self, done: int) -> None:
        """Show that so many bytes are there."""
        ...


class _Lines:
    """One line when it begins, and one every `LINE_EVERY_S` seconds."""

    def __init__(self, what: str, total: int, done: int) -> None:
        self._what, self._total = what, total
        self._began, self._first = time.monotonic(), done
        self._shown_at = self._began
        err.print(
            f"{what}: {in_bytes(total)}{f', {in_bytes(done)} are there' if done else ''}", soft_wrap=True
        )

    def advance_to(self, done: int) -> None:
        now = time.monotonic()
        if now - self._shown_at < LINE_EVERY_S:
            return
        self._shown_at = now
        rate = max(done - self._first, 1) / (now - self._began)
        left = (self._total - done) / rate
        err.print(
            f"{self._what}: {in_bytes(done)} of {in_bytes(self._total)}, {in_bytes(int(rate))}/s, "
            f"{left:.0f} s left",
            soft_wrap=True,
        )


def pauses() -> Iterator[float]:
    """Return the seconds to wait before each further attempt at a transfer that broke off."""
    return iter(PAUSES_S)


@contextmanager
def transfer_bar(what: str, total: int, done: int = 0) -> Iterator[TransferBar]:
    """Show a bar while the transfer runs; on a terminal it stays when it is full.

    Args:
        what: Name of the transfer, shown before the bar.
        done: Bytes that are there at the beginning.
    """
    if not err.is_terminal:
        yield _Lines(what, total, done)
        return
    from rich.progress import (  # noqa: PLC0415 (keeps `ryz --help` quick)
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=err) as progress:
        task = progress.add_task(what, total=total, completed=done)

        class _Bar:
            def advance_to(self, done: int) -> None:
                progress.update(task, completed=done)

        yield _Bar()
