"""Trains the demo model from data in this package and CPython's own documentation.

One call draws the data, trains tokenizer and model, and exports them; the seed determines everything. The
caller chooses the output directory and shows progress.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.batches import FIRST_PHASE, SampleSource, TrainingBatch, draw_batches
from training.bpe import train_tokenizer
from training.export import export_model, load_model
from training.model import DemoModel, TrainingModelConfig
from training.muon import Muon

DEFAULT_STEPS = 4000
BATCH_TOKENS = 4096
PEAK_LR = 0.01
_WARMUP_STEPS = 60
_DECAY_SHARE = 0.25
_GRADIENT_NORM = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlan:
    """Settings of a training run.

    Attributes:
        steps: Number of optimiser steps; `None` for `DEFAULT_STEPS`.
        seed: Determines data, initial weights and order. Sums differ in their last bits between CPUs and
            thread counts, so weights are equal only on equal machines.
        threads: CPU threads that torch may use.
        resume: Skip the first phase; the output directory must have its export.
    """

    steps: int | None = None
    seed: int = 0
    threads: int = 2
    config: TrainingModelConfig = field(default_factory=TrainingModelConfig)
    resume: bool = False


@dataclass(frozen=True, slots=True)
class TrainProgress:
    """State after a step; `loss` is a mean over about the last fifty steps, in nats per token."""

    step: int
    steps: int
    loss: float
    tokens: int
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class TrainReport:
    """Results of a training run."""

    output: Path
    steps: int
    seed: int
    parameters: int
    tokens: int
    wall_s: float
    loss: float


def train_demo(
    output: Path, plan: TrainPlan, progress: Callable[[TrainProgress], None] = lambda _: None
) -> TrainReport:
    """Train the demo model in two phases and export it as a Hugging Face directory.

    The first phase ends with an export. The second starts from that export with a new optimiser, so that it
    can also run alone.

    Args:
        progress: Called after every step.

    Returns:
        The results and the time used.
    """
    started = time.perf_counter()
    total, seed, resume = DEFAULT_STEPS if plan.steps is None else plan.steps, plan.seed, plan.resume
    middle = max(1, round(FIRST_PHASE * total))
    torch.set_num_threads(plan.threads)
    torch.manual_seed(seed)
    state = TrainProgress(middle if resume else 0, total, 0.0, 0, 0.0)
    for start, stop in ((0, middle), (middle, total)):
        if start < state.step:
            continue
        if start == 0:
            model = DemoModel(plan.config)
            tokenizer = train_tokenizer(model.config.vocab_size, seed)
        else:
            model, tokenizer = load_model(output)
        source = SampleSource(tokenizer, seed + start, model.config.max_positions)
        batches = draw_batches(source, seed + start, total, BATCH_TOKENS, start=start, stop=stop)
        update = _make_update(model)
        for step, batch in enumerate(batches, start + 1):
            loss = batch_loss(model, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            update(learning_rate(step, start, total))
            state = _advance(state, loss.item(), batch.inputs.numel(), time.perf_counter() - started)
            progress(state)
        export_model(model, tokenizer, output)
    count = sum(parameter.numel() for parameter in model.parameters())
    return TrainReport(output, total, seed, count, state.tokens, time.perf_counter() - started, state.loss)


def batch_loss(model: DemoModel, batch: TrainingBatch) -> Tensor:
    """Weighted mean cross-entropy of the targets, in nats; matrix products run in bfloat16."""
    wanted = batch.weights > 0
    with torch.autocast("cpu", torch.bfloat16):
        logits = model.logits(model(batch.inputs, batch.positions)[wanted])
    losses = F.cross_entropy(logits.float(), batch.targets[wanted], reduction="none")
    weights = batch.weights[wanted]
    return (losses * weights).sum() / weights.sum().clamp(min=1e-6)


def learning_rate(step: int, start: int, steps: int) -> float:
    """Warm up at the start of a phase, stay at the peak, and fall linearly to zero at the end.

    Args:
        step: The step, counted from one.
        start: Number of steps before the phase.
        steps: Number of steps of the whole training.
    """
    decay_steps = max(1, round(_DECAY_SHARE * steps))
    return PEAK_LR * min(1.0, (step - start) / _WARMUP_STEPS, (steps - step + 1) / decay_steps)


def _advance(state: TrainProgress, loss: float, tokens: int, elapsed_s: float) -> TrainProgress:
    mean = state.loss + (loss - state.loss) * max(0.02, 1 / (state.step + 1) if state.loss else 1.0)
    return TrainProgress(state.step + 1, state.steps, mean, state.tokens + tokens, elapsed_s)


def _make_update(model: DemoModel) -> Callable[[float], None]:
    """Make the update of a step: Muon for the layers' matrices, AdamW for the other parameters."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    muon = Muon(matrices, momentum=0.95, weight_decay=0.1)
    adam = torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0)

    def update(lr: float) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), _GRADIENT_NORM)
        muon.step(lr)
        for group in adam.param_groups:
            group["lr"] = 0.3 * lr
        adam.step()
        model.zero_grad(set_to_none=True)

    return update
