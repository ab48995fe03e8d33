"""Trains the demo model from a shell, without the `ryz` command.

It only reads the arguments and prints progress lines; `train_demo` does the work.
"""

import argparse
import sys
from pathlib import Path

from training.train import TrainPlan, TrainProgress, train_demo


def main() -> None:
    """Read the arguments, train, and print where the model is."""
    parser = argparse.ArgumentParser(prog="python -m training", description="Train the demo model.")
    parser.add_argument("--output", type=Path, required=True, help="directory to write")
    parser.add_argument("--steps", type=int, help="optimiser steps (default: those of the shipped model)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--resume", action="store_true", help="go on from the first phase's export in DIR")
    options = parser.parse_args()
    report = train_demo(
        options.output,
        TrainPlan(steps=options.steps, seed=options.seed, threads=options.threads, resume=options.resume),
        _print_progress,
    )
    print(f"{report.output}: {report.parameters} parameters, {report.tokens} tokens, {report.wall_s:.0f} s")


def _print_progress(state: TrainProgress) -> None:
    if state.step % 20 == 0 or state.step == state.steps:
        speed = f"{state.tokens / max(state.elapsed_s, 1e-9):.0f} tokens/s"
        line = f"step {state.step}/{state.steps}, loss {state.loss:.3f}, {speed}, {state.elapsed_s:.0f} s"
        print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
