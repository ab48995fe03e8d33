"""`ryz train-demo`: a progress bar around the training of the demo model."""

import os
from pathlib import Path
from typing import Annotated

import typer


def train_demo(
    output: Annotated[Path, typer.Option(help="The directory to write.", file_okay=False)],
    steps: Annotated[
        int | None, typer.Option(min=1, help="Optimiser steps.  [default: those of the shipped model]")
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides data, initial weights and order.")] = 0,
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0: all.")] = 0,
) -> None:
    """Train the demo model from scratch; reproducible from this repository alone."""
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from cli.console import err, make_writable, out  # noqa: PLC0415

    make_writable(output, "--output")
    with err.status("Making the tokenizer and the data"):
        from training.train import TrainPlan, TrainProgress  # noqa: PLC0415
        from training.train import train_demo as train  # noqa: PLC0415
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}, {task.fields[speed]:,.0f} tokens/s"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, speed_estimate_period=120.0) as bar:
        task = bar.add_task("training", total=steps, loss=float("nan"), speed=0.0)

        def show(state: TrainProgress) -> None:
            speed = state.tokens / max(state.elapsed_s, 1e-9)
            bar.update(task, completed=state.step, total=state.steps, loss=state.loss, speed=speed)
            if not err.is_terminal and (state.step % 100 == 0 or state.step == state.steps):
                err.print(f"step {state.step}/{state.steps}, loss {state.loss:.3f}, {speed:,.0f} tokens/s")

        plan = TrainPlan(steps=steps, seed=seed, threads=threads or os.cpu_count() or 1)
        report = train(output, plan, show)
    out.print(
        f"{report.output}: {report.parameters:,} parameters, {report.steps} steps, {report.tokens:,} tokens, "
        f"loss {report.loss:.3f}, {report.wall_s:.0f} s",
        markup=False,
        soft_wrap=True,
    )
