"""How many tokens of prompts a step takes while other sequences decode, so that these keep their pace.

A step lasts about as long as it has tokens to compute, so a prompt of some hundred tokens in one step makes
everybody else wait for it. The speed is measured from the steps themselves; an engine that takes no time has
no limit.
"""

from services.worker.rank_protocol.plan import BLOCK_SIZE

MIN_CHUNK = BLOCK_SIZE  # a prompt gets on by so many tokens a step, however slow the engine is
_WEIGHT = 0.25  # of the newest measurement


class PrefillThrottle:
    """Seconds per token of steps that compute prompts.

    target_s: how long such a step may take while sequences decode; 0: no limit.
    """

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s
        self._token_s = 0.0

    def observe(self, num_tokens: int, compute_s: float) -> None:
        """Takes the time of a step; one with few tokens says nothing about the next chunk's."""
        if num_tokens < MIN_CHUNK:
            return
        token_s = compute_s / num_tokens
        self._token_s += (token_s - self._token_s) * (_WEIGHT if self._token_s else 1.0)

    def chunk(self, budget: int, num_decodes: int) -> int:
        """How many of `budget` tokens the prompts get beside that many decodes."""
        if not num_decodes or not self._target_s or not self._token_s:
            return budget
        affordable = int(self._target_s / self._token_s) - num_decodes
        return min(budget, max(MIN_CHUNK, affordable))
