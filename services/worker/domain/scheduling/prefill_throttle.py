"""Limits the tokens of prompts in a step while other sequences decode, so that their latency stays low.

The time of a step grows with its tokens, so a prompt of some hundred tokens in one step delays the next token
of all other sequences. The speed is measured from the steps themselves; an engine that takes no time has no
limit.
"""

from services.worker.rank_protocol.plan import BLOCK_SIZE

MIN_CHUNK = BLOCK_SIZE  # a prompt gets on by so many tokens a step, however slow the engine is
_WEIGHT = 0.25  # of the newest measurement


class PrefillThrottle:
    """Measures seconds per token of steps that compute prompts.

    Args:
        target_s: How long such a step may take while sequences decode; 0 for no limit.
    """

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s
        self._token_s = 0.0

    def observe_step(self, num_tokens: int, compute_s: float) -> None:
        """Records the time of a step; steps of few tokens tell nothing of prompts."""
        if num_tokens < MIN_CHUNK:
            return
        token_s = compute_s / num_tokens
        self._token_s += (token_s - self._token_s) * (_WEIGHT if self._token_s else 1.0)

    def prompt_budget(self, budget: int, num_decodes: int) -> int:
        """Returns how many of `budget` tokens the prompts get beside that many decodes."""
        if not num_decodes or not self._target_s or not self._token_s:
            return budget
        affordable = int(self._target_s / self._token_s) - num_decodes
        return min(budget, max(MIN_CHUNK, affordable))
