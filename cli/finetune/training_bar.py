"""Shows a training: a bar with loss, speed and time left; a log gets a line now and then."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cli.console import err

if TYPE_CHECKING:
    from training.finetune.trainer import TrainState

_LINE_EVERY_S = 15.0


@contextmanager
def training_bar() -> Iterator[Callable[["TrainState"], None]]:
    """Give the callback for progress."""
    from rich.progress import (  # noqa: PLC0415 (keeps `ryz --help` quick)
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    if not err.is_terminal:
        yield _lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, *times, console=err, speed_estimate_period=600.0) as bar:
        task = bar.add_task("first step", total=None)

        def show(state: "TrainState") -> None:
            bar.update(task, description=_text(state), completed=state.step, total=state.steps)

        yield show


def _lines() -> Callable[["TrainState"], None]:
    began = last = time.monotonic()
    first = None

    def show(state: "TrainState") -> None:
        nonlocal last, first
        now, first = time.monotonic(), state.step - 1 if first is None else first
        if state.step < state.steps and now - last < _LINE_EVERY_S:
            return
        last = now
        left = (now - began) / (state.step - first) * (state.steps - state.step)
        err.print(f"step {state.step}/{state.steps}, {_text(state)}, {left:.0f} s left", soft_wrap=True)

    return show


def _text(state: "TrainState") -> str:
    held_out = "" if state.held_out is None else f", held out {state.held_out:.3f}"
    speed = f"{state.tokens_per_s:,.0f} tokens/s"
    return f"epoch {state.epoch}/{state.epochs}, loss {state.loss:.3f}{held_out}, {speed}"
