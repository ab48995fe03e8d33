"""The time limit of a step, after which ranks count as hung: it grows with the tokens, at the measured pace.

Steps of one token and of a long prefill chunk differ by orders of magnitude, and so do models. One number for
all would give up on working ranks or wait minutes for hung ones.
"""

from services.worker.rank_protocol.plan import StepPlan

_MARGIN = 2.0  # factor on the time that so many tokens took before
_LEAST_TOKENS = 32  # of a step whose pace counts; smaller steps are mostly overhead
_FORGETTING = 0.98  # decay of an old, slower pace with every measured step
# Until a pace is measured: a token costs about a multiplication and an addition for each weight, and few
# cores process fewer bytes of weights per second.
_ASSUMED_BYTES_PER_S = 2e10


class StepLimit:
    """Limit in seconds = `base_s` + 2 * tokens * seconds per token, the slowest pace seen in larger steps.

    Args:
        base_s: Limit of a step without tokens.
        weight_bytes: Weights of the rank that has most of them.
    """

    def __init__(self, base_s: float, weight_bytes: int) -> None:
        self.base_s = base_s
        self._token_s = weight_bytes / _ASSUMED_BYTES_PER_S
        self._measured = False

    def limit_s(self, plan: StepPlan) -> float:
        """Return the limit of a step, in seconds."""
        return self.base_s + self.token_time_s(plan)

    def token_time_s(self, plan: StepPlan) -> float:
        """Return the part of the limit that its tokens add, in seconds."""
        return _MARGIN * self._token_s * _num_tokens(plan)

    def measures(self, plan: StepPlan) -> bool:
        """Return whether the duration of this step counts for the pace."""
        return _num_tokens(plan) >= _LEAST_TOKENS

    def record_step(self, plan: StepPlan, compute_s: float) -> None:
        """Take the duration of a step into the pace, without the time for which ranks waited for a core."""
        if self.measures(plan):
            tokens = _num_tokens(plan)
            old = self._token_s * _FORGETTING if self._measured else 0.0
            self._token_s = max(old, compute_s / tokens)
            self._measured = True


def _num_tokens(plan: StepPlan) -> int:
    return sum(piece.num_tokens for piece in plan.chunks)
