"""Measures the training of an adapter: tokens a second and peak memory, and what is learned of a fact sheet.

Each training runs in a process of its own, so that its peak memory is its own.
"""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.engine_plans import FinetuneBenchPlan, model_name
from benchmarks.finetune.fact_sheet import write_chats
from benchmarks.lib.child import ChildObject
from benchmarks.lib.measuring import BenchError
from training.finetune.errors import FinetuneError
from training.finetune.plan import FinetunePlan

_LONGEST_S = 4 * 3600.0


class TrainingRun:
    """A training, made in a process of its own."""

    def __init__(self, plan: FinetunePlan, source: Path) -> None:
        self._plan, self._source = plan, source

    def train(self) -> dict[str, Any]:
        """Run it; returns figures."""
        from services.worker.model_files.load_model import load_model  # noqa: PLC0415 (in the child only)
        from training.finetune.finetune import finetune  # noqa: PLC0415

        speed = 0.0

        def see(state: Any) -> None:
            nonlocal speed
            speed = state.tokens_per_s

        try:
            report = finetune(self._plan, load_model(self._source, "base"), progress=see)
        except FinetuneError as error:
            raise BenchError(str(error)) from error
        return {
            "steps": report.steps, "tokens": report.tokens, "tokens_per_s": round(speed, 1),
            "loss": round(report.loss, 4), "held_out_before": report.held_out_before,
            "held_out": report.held_out, "wall_s": round(report.wall_s, 1), "cpu_s": round(report.cpu_s, 1),
            "peak_mib": round(report.peak_bytes / 2**20), "free_mib": round(report.free_bytes / 2**20),
            "estimate_mib": round(report.estimate.total / 2**20),
        }  # fmt: skip


def measure(
    plan: FinetuneBenchPlan, directory: Path, source: Path, threads: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Train with each number of bits.

    Args:
        directory: The base in Hugging Face form.
        source: The base as it is served.
        progress: Called at the beginning of each training and examination.

    Returns:
        `rows`, and with facts `learned`.
    """
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="ryz-finetune-") as scratch:
        data, number = Path(scratch) / "chats.jsonl", 0
        write_chats(data, plan.seed, plan.chats)
        base = FinetunePlan(
            base=directory, base_name=str(source), data=data, output=Path(scratch), length=plan.length,
            rank=plan.rank, alpha=2.0 * plan.rank, epochs=1, held_out=0, patience=0, seed=plan.seed,
            threads=threads,
        )  # fmt: skip
        for bits in plan.base_bits:
            for recompute in (False, True) if plan.recompute else (False,):
                number += 1
                progress(f"{bits} bits{', layers computed again' if recompute else ''}")
                output = Path(scratch) / f"adapter{number}"
                run = replace(base, base_bits=bits, recompute=recompute, output=output)
                rows.append({"base_bits": bits, "recompute": recompute} | _train(run, source))
        learned: dict[str, Any] = {}
        if plan.facts:
            run = replace(
                base, base_bits=plan.base_bits[0], epochs=plan.epochs, learning_rate=plan.learning_rate,
                held_out=0.1, output=Path(scratch) / "facts",
            )  # fmt: skip
            write_chats(data, plan.seed)
            progress("questions before")
            learned["before"] = _examine(directory, source, None, threads, plan.seed)
            progress("training on the fact sheet")
            learned["training"] = _train(run, source)
            progress("questions after")
            learned["after"] = _examine(directory, source, run.output, threads, plan.seed)
    return {
        "model": model_name(source), "threads": threads, "rank": plan.rank, "length": plan.length,
        "rows": rows, "learned": learned,
    }  # fmt: skip


def _train(plan: FinetunePlan, source: Path) -> dict[str, Any]:
    return in_child("finetune:TrainingRun", {"plan": plan, "source": source}, "train")


def _examine(directory: Path, source: Path, adapter: Path | None, threads: int, seed: int) -> dict[str, Any]:
    given = {"directory": directory, "source": source, "adapter": adapter, "threads": threads}
    return in_child("learning:Examiner", given, "examine", seed)


def in_child(maker: str, given: dict[str, Any], method: str, *arguments: Any) -> dict[str, Any]:
    """Return what a method of an object returns, which is made in a process of its own."""
    child = ChildObject(f"benchmarks.finetune.{maker}", given)
    try:
        child.receive(_LONGEST_S)
        found: dict[str, Any] = child.call(method, *arguments, timeout_s=_LONGEST_S)
    finally:
        child.close()
    return found
