"""How long a step may take before the ranks count as hung: longer for more tokens, at the pace they show.

A step of one token and one of a long chunk of a prompt differ by orders of magnitude, and so do models; one
number for all of them would either give up on a rank that works or wait minutes for one that hangs.
"""

from services.worker.rank_protocol.plan import StepPlan

_MARGIN = 2.0  # a step may take so many times what its tokens took before
_LEAST_TOKENS = 32  # of a step whose pace counts; in smaller ones most of the time is not for the tokens
_FORGETTING = 0.98  # of an old, slower pace, with every step that shows one
# Until a pace is known: a token costs about a multiplication and an addition for each weight, and one core
# that does only so many bytes of weights a second would be among the slowest.
_ASSUMED_BYTES_PER_S = 2e10


class StepLimit:
    """Limit in seconds = `base_s` + 2 * tokens * seconds a token, the slowest pace seen in larger steps.

    Args:
        base_s: For the step itself; all there is for steps of few tokens.
        weight_bytes: Read by the rank that has most of them.
    """

    def __init__(self, base_s: float, weight_bytes: int) -> None:
        self.base_s = base_s
        self._token_s = weight_bytes / _ASSUMED_BYTES_PER_S
        self._measured = False

    def limit_s(self, plan: StepPlan) -> float:
        """The limit of that step."""
        return self.base_s + self.token_time_s(plan)

    def token_time_s(self, plan: StepPlan) -> float:
        """What of it is for the tokens."""
        return _MARGIN * self._token_s * _num_tokens(plan)

    def record_step(self, plan: StepPlan, compute_s: float) -> None:
        """Takes in how long a step took."""
        tokens = _num_tokens(plan)
        if tokens >= _LEAST_TOKENS:
            old = self._token_s * _FORGETTING if self._measured else 0.0
            self._token_s = max(old, compute_s / tokens)
            self._measured = True


def _num_tokens(plan: StepPlan) -> int:
    return sum(piece.num_tokens for piece in plan.slices)
