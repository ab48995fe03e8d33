"""The measured cost of a step by what it computes: decodes, tokens of prompts, and their contexts.

Least squares with weights that decay exponentially (recursive least squares with a forgetting factor, see
Haykin, "Adaptive Filter Theory"), no coefficient below zero. A small penalty holds the coefficients near
their last values (Tikhonov regularisation): those that recent steps have no data for are kept. Pure.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from services.worker.domain.scheduling.step_draft import PlannedChunk

_KEPT = 0.96  # weight of what was before a step
_HOLD = 0.02  # of the penalty, against the weight 1 of the newest step
_TRUSTED = 8  # steps, after which an outlier is cut
OUTLIER = 2.0  # times the expected time, or its reciprocal
_SHIFT = 6  # outliers in a row, after which they count as they are: the machine has another speed now
# one unit of each feature, chosen so that usual steps have about one of each
_DECODES, _CONTEXT, _PROMPT, _PAIRS = 16.0, 16_384.0, 256.0, 524_288.0


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step computes.

    Attributes:
        decodes: Tokens of sequences that decode.
        context: Positions that these attend to, added up.
        prompt_tokens: Tokens of prompts, and of runs that grammars force.
        pairs: Of a token of a prompt and a position that it attends to.
    """

    decodes: int = 0
    context: int = 0
    prompt_tokens: int = 0
    pairs: float = 0.0

    @classmethod
    def of_chunks(cls, chunks: Iterable[PlannedChunk]) -> "StepWork":
        """Adds up the chunks of a step; a chunk of one token counts as a decode, that of a prompt as well."""
        decodes = context = prompt_tokens = 0
        pairs = 0.0
        for _, _, count, _, end in chunks:
            if count > 1:
                prompt_tokens += count
                pairs += count * (end - count / 2)
            else:
                decodes += 1
                context += end
        return cls(decodes, context, prompt_tokens, pairs)

    def features(self) -> list[float]:
        """The row of the least squares."""
        return [
            1.0,
            self.decodes / _DECODES,
            self.context / _CONTEXT,
            self.prompt_tokens / _PROMPT,
            self.pairs / _PAIRS,
        ]


class StepCostModel:
    """Learns the seconds of steps.

    Attributes:
        knows_prompts: A step with tokens of prompts was measured.
    """

    def __init__(self) -> None:
        size = len(StepWork().features())
        self._squares = [[0.0] * size for _ in range(size)]
        self._products = [0.0] * size
        self._costs = [0.0] * size
        self._solved = True
        self._steps = 0
        self._outliers = 0
        self.knows_prompts = False

    def observe_step(self, work: StepWork, seconds: float) -> None:
        """Records a step; one that took no time is ignored."""
        if seconds <= 0:
            return
        if self._steps >= _TRUSTED:
            seconds = self._without_outlier(self.seconds(work), seconds)
        self._steps += 1
        self.knows_prompts |= work.prompt_tokens > 0
        row = work.features()
        for i, feature in enumerate(row):
            squares = self._squares[i]
            for j, other in enumerate(row):
                squares[j] = squares[j] * _KEPT + feature * other
            self._products[i] = self._products[i] * _KEPT + feature * seconds
        self._solved = False

    def seconds(self, work: StepWork) -> float:
        """Returns the expected seconds of a step."""
        self._solve()
        return sum(cost * feature for cost, feature in zip(self._costs, work.features(), strict=True))

    def prompt_tokens_within(self, seconds: float, context: int) -> int:
        """Returns how many tokens of a prompt take that much longer than the step without them.

        Args:
            seconds: Of the prompt alone.
            context: Tokens of the prompt that are computed already.
        """
        self._solve()
        pair = self._costs[4] / _PAIRS
        linear = max(self._costs[3] / _PROMPT + pair * context, 1e-9)
        # pair / 2 * n**2 + linear * n = seconds, in the form that is exact for a small `pair`
        return max(0, int(2 * seconds / (linear + math.sqrt(linear * linear + 2 * pair * seconds))))

    def _without_outlier(self, expected: float, seconds: float) -> float:
        bounded = min(max(seconds, expected / OUTLIER), expected * OUTLIER)
        self._outliers = self._outliers + 1 if bounded != seconds else 0
        return seconds if self._outliers >= _SHIFT else bounded

    def _solve(self) -> None:
        if self._solved:
            return
        self._solved = True
        free = list(range(len(self._costs)))
        while free:
            found = _solve_linear(
                [[self._squares[i][j] + (_HOLD if i == j else 0.0) for j in free] for i in free],
                [self._products[i] + _HOLD * self._costs[i] for i in free],
            )
            lowest = min(range(len(free)), key=found.__getitem__)
            if found[lowest] >= 0:
                break
            del free[lowest]  # this one is 0
        costs = [0.0] * len(self._costs)
        for i, cost in zip(free, found, strict=True):
            costs[i] = cost
        self._costs = costs


def _solve_linear(matrix: list[list[float]], values: list[float]) -> list[float]:
    """Solves a positive definite system by Gaussian elimination; changes its arguments."""
    size = len(values)
    for i in range(size):
        for j in range(i + 1, size):
            factor = matrix[j][i] / matrix[i][i]
            for k in range(i, size):
                matrix[j][k] -= factor * matrix[i][k]
            values[j] -= factor * values[i]
    for i in reversed(range(size)):
        values[i] -= sum(matrix[i][k] * values[k] for k in range(i + 1, size))
        values[i] /= matrix[i][i]
    return values
