"""The learning rate of each step, and when the training ends early. Pure."""

from dataclasses import dataclass

WARMUP = 0.05  # of the steps
_LEAST_GAIN = 1e-4  # of the held-out loss, in nats


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Return the rate: it rises for the first steps, then falls linearly and would be 0 after the last.

    Args:
        step: Counted from 1.
        steps: Of the whole course.
    """
    warmup = max(1, round(WARMUP * steps))
    if step <= warmup:
        return peak * step / warmup
    return peak * (steps - step + 1) / (steps - warmup + 1)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The held-out losses so far.

    Attributes:
        best: The lowest loss; None before the first evaluation.
        best_step: Its step.
        worse: Evaluations since then.
    """

    best: float | None = None
    best_step: int = 0
    worse: int = 0

    def after(self, loss: float, step: int) -> "HeldOut":
        """Return the state after one more evaluation."""
        if self.best is None or loss < self.best - _LEAST_GAIN:
            return HeldOut(loss, step)
        return HeldOut(self.best, self.best_step, self.worse + 1)

    def is_best(self, step: int) -> bool:
        """Return whether the evaluation after that step is the best one."""
        return self.best is not None and self.best_step == step

    def ends(self, patience: int) -> bool:
        """Return whether the training ends early."""
        return patience > 0 and self.worse >= patience
