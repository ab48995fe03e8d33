"""The training loop: steps, evaluations, checkpoints, early stop, and going on where another run stopped."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from training.finetune.checkpoints import Checkpoint, require_same, write_checkpoint
from training.finetune.errors import FinetuneError, Stopped
from training.finetune.loss_log import LossLog
from training.finetune.pack_loss import PackModel
from training.finetune.packing import Course, Pack
from training.finetune.plan import FinetunePlan
from training.finetune.rendering import TokenChat
from training.finetune.schedule import HeldOut, learning_rate

_CLIP = 1.0  # norm of the gradients
_BETAS = (0.9, 0.999)
_TRAINED, _BEST, _MOMENT, _SQUARE, _RNG = "trained.", "best.", "moment.", "square.", "rng"


@dataclass(frozen=True, slots=True)
class TrainState:
    """The state after a step.

    Attributes:
        loss: Of the step, in nats per learned token.
        tokens: Computed so far in training, also by earlier runs.
        held_out: The last held-out loss; None without one.
        tokens_per_s: Of this run, evaluations left out.
    """

    step: int
    steps: int
    epoch: int
    epochs: int
    loss: float
    held_out: float | None
    tokens: int
    tokens_per_s: float


class Trainer:
    """Trains the parameters of a model that need gradients.

    Args:
        chats: By the indexes in packs.
        held_out: Packs that are not trained on.
        identity: See `Checkpoint`.
        is_stopped: Asked after each step; True ends the training with a checkpoint.
    """

    def __init__(
        self,
        model: PackModel,
        plan: FinetunePlan,
        *,
        course: Course,
        chats: Sequence[TokenChat],
        held_out: Sequence[Pack],
        identity: dict[str, Any],
        is_stopped: Callable[[], bool],
    ) -> None:
        self._model, self._plan, self._course, self._chats = model, plan, course, chats
        self._held_out = [self._of(pack) for pack in held_out]
        self._identity, self._is_stopped = identity, is_stopped
        self._trained = {name: one for name, one in model.model.named_parameters() if one.requires_grad}
        self._optimizer = torch.optim.AdamW(self._trained.values(), betas=_BETAS, weight_decay=0.0)
        self._best: dict[str, Tensor] | None = None
        self.step, self.tokens, self.held = 0, 0, HeldOut()
        self.first_held_out: float | None = None
        self._last_held_out: float | None = None
        self._loss, self._spent_s, self._spent_tokens = math.nan, 0.0, 0

    @property
    def best(self) -> dict[str, Tensor]:
        """Return the weights with the lowest held-out loss; without held-out chats, the last ones."""
        return self._best if self._best is not None else self._copy()

    def resume(self, state: Checkpoint) -> None:
        """Go on after a checkpoint.

        Raises:
            FinetuneError: It is of another training.
        """
        require_same(state.identity, self._identity)
        facts, tensors = state.facts, state.tensors
        try:
            with torch.no_grad():
                for name, one in self._trained.items():
                    one.copy_(tensors[_TRAINED + name])
                    self._optimizer.state[one] = {
                        "step": torch.tensor(float(state.step)),
                        "exp_avg": tensors[_MOMENT + name],
                        "exp_avg_sq": tensors[_SQUARE + name],
                    }
            torch.set_rng_state(tensors[_RNG])
            self._best = {
                name.removeprefix(_BEST): one for name, one in tensors.items() if name.startswith(_BEST)
            } or None
            self.step, self.tokens = state.step, int(facts["tokens"])
            self.held, self.first_held_out = HeldOut(**facts["held"]), facts["first_held_out"]
            self._last_held_out, self._loss = facts["last_held_out"], float(facts["loss"])
        except (KeyError, TypeError, RuntimeError) as error:
            raise FinetuneError(f"The checkpoint of step {state.step} is damaged: {error}") from error

    def train(self, progress: Callable[[TrainState], None]) -> float:
        """Run all steps that are left.

        Args:
            progress: Called after each step.

        Returns:
            The loss of the last step.

        Raises:
            Stopped: `is_stopped` said so; a checkpoint is written.
            FinetuneError: The loss is no number, or a checkpoint cannot be written.
        """
        plan, steps = self._plan, self._course.steps
        log = LossLog(plan.output, self.step)
        written = time.monotonic()
        if self.step == 0 and self._held_out:
            self.first_held_out = self._last_held_out = self._model.mean_loss(self._held_out)
            log.add(step=0, held_out_loss=self.first_held_out)
        while self.step < len(steps) and not self.held.ends(plan.patience):
            loss = self._loss = self._take_step(steps[self.step])
            epoch = 1 + sum(self.step > end for end in self._course.epoch_ends)
            log.add(step=self.step, epoch=epoch, loss=loss, tokens=self.tokens)
            evaluates = self._held_out and self.step in self._course.evaluate_after
            if evaluates:
                self._evaluate(log)
            speed = self._spent_tokens / max(self._spent_s, 1e-9)
            state = TrainState(
                self.step, len(steps), epoch, plan.epochs, loss, self._last_held_out, self.tokens, speed
            )
            stopped = self._is_stopped()
            if stopped or evaluates or time.monotonic() - written >= plan.checkpoint_s:
                log.sync()
                self._write_checkpoint(plan.output)
                written = time.monotonic()
            progress(state)
            if stopped:
                raise Stopped(self.step)
        return self._loss

    def _take_step(self, packs: Sequence[Pack]) -> float:
        began = time.monotonic()
        self._model.model.train()
        given = [self._of(pack) for pack in packs]
        count = sum(chat.num_answers for chats in given for chat in chats)
        total = 0.0
        for chats in given:
            loss, _ = self._model.loss(chats)
            (loss / count).backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        if not math.isfinite(total):
            raise FinetuneError(
                f"The loss of step {self.step + 1} is no finite number; take a lower `--learning-rate`"
            )
        nn.utils.clip_grad_norm_(self._trained.values(), _CLIP)
        self.step += 1
        rate = learning_rate(self.step, len(self._course.steps), self._plan.learning_rate)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        tokens = sum(len(chat.tokens) for chats in given for chat in chats)
        self.tokens += tokens
        self._spent_tokens += tokens
        self._spent_s += time.monotonic() - began
        return total / count

    def _evaluate(self, log: LossLog) -> None:
        loss = self._last_held_out = self._model.mean_loss(self._held_out)
        log.add(step=self.step, held_out_loss=loss)
        self.held = self.held.after(loss, self.step)
        if self.held.is_best(self.step):
            self._best = self._copy()

    def _write_checkpoint(self, directory: Path) -> None:
        tensors = {_RNG: torch.get_rng_state()}
        for name, one in self._trained.items():
            moments = self._optimizer.state[one]
            tensors[_TRAINED + name] = one.detach()
            tensors[_MOMENT + name], tensors[_SQUARE + name] = moments["exp_avg"], moments["exp_avg_sq"]
        tensors |= {_BEST + name: one for name, one in (self._best or {}).items()}
        facts = {
            "tokens": self.tokens, "held": asdict(self.held), "first_held_out": self.first_held_out,
            "last_held_out": self._last_held_out, "loss": self._loss,
        }  # fmt: skip
        write_checkpoint(directory, Checkpoint(self.step, self._identity, facts, tensors))

    def _copy(self) -> dict[str, Tensor]:
        return {name: one.detach().clone() for name, one in self._trained.items()}

    def _of(self, pack: Pack) -> list[TokenChat]:
        return [self._chats[index] for index in pack]
