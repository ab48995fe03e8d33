"""Shows batches: a line, a table, a progress bar."""

import time
from collections.abc import Callable, Iterable
from typing import Any, Literal

from cli.batch.api import ENDED
from cli.console import err

LINE_EVERY_S = 10.0
POLL_S = 0.5
Batch = dict[str, Any]


def sentence(batch: Batch) -> str:
    """Return the state of a batch in a line, with what is wrong with its file."""
    counts = batch["request_counts"]
    state = f"{batch['status']}, paused" if batch.get("paused") else batch["status"]
    failed = f", {counts['failed']} failed" if counts["failed"] else ""
    lines = [f"{batch['id']}: {state}, {done_of(batch)} of {counts['total']} requests{failed}"]
    for fault in (batch.get("errors") or {}).get("data", [])[:20]:
        prefix = f"line {fault['line']}: " if fault.get("line") else ""
        lines.append(f"  {prefix}{fault['message']}")
    return "\n".join(lines)


def done_of(batch: Batch) -> int:
    """Return how many of its requests have a result."""
    counts = batch["request_counts"]
    return int(counts["completed"]) + int(counts["failed"])


def table(batches: Iterable[Batch]) -> Any:
    """Return a table of batches."""
    from rich.table import Table  # noqa: PLC0415 (keeps `ryz --help` quick)

    shown = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("batch", "state", "done", "failed", "of", "route", "file"):
        justify: Literal["left", "right"] = "right" if heading in {"done", "failed", "of"} else "left"
        whole = heading in {"batch", "state"}
        shown.add_column(heading, justify=justify, header_style="dim", overflow="fold", no_wrap=whole)
    for batch in batches:
        counts = batch["request_counts"]
        name = (batch.get("metadata") or {}).get("ryz_file", batch["input_file_id"])
        state = "paused" if batch.get("paused") and batch["status"] not in ENDED else batch["status"]
        shown.add_row(
            batch["id"],
            state,
            str(done_of(batch)),
            str(counts["failed"]),
            str(counts["total"]),
            batch["endpoint"],
            str(name),
        )
    return shown


def follow(ask: Callable[[], Batch]) -> Batch:
    """Show how far a batch is until it has ended; on a terminal a bar, else a line now and then."""
    if not err.is_terminal:
        return _follow_in_lines(ask)
    from rich.progress import (  # noqa: PLC0415 (keeps `ryz --help` quick)
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=err) as progress:
        task = progress.add_task("batch", total=None)
        while True:
            batch = ask()
            state = "paused" if batch.get("paused") else batch["status"]
            total = batch["request_counts"]["total"] or None
            progress.update(task, description=state, total=total, completed=done_of(batch))
            if batch["status"] in ENDED:
                return batch
            time.sleep(POLL_S)


def _follow_in_lines(ask: Callable[[], Batch]) -> Batch:
    shown_at, shown = 0.0, ""
    while True:
        batch = ask()
        text = sentence(batch)
        if batch["status"] in ENDED:
            return batch  # the caller shows it
        if text != shown and time.monotonic() - shown_at >= LINE_EVERY_S:
            err.print(text, markup=False, soft_wrap=True)
            shown_at, shown = time.monotonic(), text
        time.sleep(POLL_S)
