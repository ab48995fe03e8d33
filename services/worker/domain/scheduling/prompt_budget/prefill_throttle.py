"""Limits the tokens of prompts in a step while other sequences decode, so that their tokens come evenly.

A sequence that decodes gets a token with each step, so the time of a step is its inter-token latency. The
prompts get what the decodes leave of the target, by the measured costs of steps, and always enough to get on.
Beside decodes of another party they get at most as much time as these (`shared_pace.py`). Runs that grammars
force are computed like prompts, and count as such. An engine that takes no time has no limit. Pure.
"""

from services.worker.domain.scheduling.prompt_budget.shared_pace import SharedPace
from services.worker.domain.scheduling.prompt_budget.step_costs import OUTLIER, StepCostModel, StepWork
from services.worker.rank_protocol.plan import BLOCK_SIZE

MIN_CHUNK = BLOCK_SIZE  # prompts get on by so many tokens a step, however slow the engine is
LEAST_SHARE = 0.25  # share of the decodes' time that goes to prompts, even if the target leaves less
COLD_CHUNK = 4 * BLOCK_SIZE  # tokens of prompts in a step before any were measured
_WITHIN = 0.999  # share of the steps that are to be within the target
_ADAPT = 0.06  # how fast the margin follows
_FIRST_MARGIN, _MOST_MARGIN = 1.3, 1.5
_DECODES_MEASURED = 8  # one of so many steps without prompts is measured
_ONE_DECODE = StepWork(decodes=1)


class PrefillThrottle:
    """Measures steps, and says how many tokens of prompts fit beside the decodes.

    Args:
        target_s: How long such a step may take while sequences decode; 0 for no limit.

    Attributes:
        pace: What prompts cost beside decodes of another party.
        num_cuts: Steps that were cut since `take_cuts`.
    """

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s
        self._costs = StepCostModel()
        self.pace = SharedPace()
        self._margin = _FIRST_MARGIN  # steps take at most so many times what is expected, but for a few
        self._steps = 0
        self.num_cuts = 0
        self._budget = 0

    def measures(self, has_chunk: bool) -> bool:
        """Returns whether the step that ended is to be observed; few of those that only decode are."""
        self._steps += 1
        return self._target_s > 0 and (has_chunk or self._steps % _DECODES_MEASURED == 0)

    def observe_step(self, work: StepWork, seconds: float) -> None:
        """Records the time of a step: that between its result and the one before, as the decodes see it."""
        if seconds > 0 and work.decodes and work.prompt_tokens and self._costs.knows_prompts:
            # the quantile `_WITHIN` of the ratio, by stochastic approximation (Robbins and Monro, 1951)
            ratio = seconds / self._costs.seconds(work)
            if ratio < OUTLIER:  # no chunk is so small that it prevents the others
                self._margin += _ADAPT * (_WITHIN if ratio > self._margin else _WITHIN - 1)
                self._margin = min(max(self._margin, 1.0), _MOST_MARGIN)
        self._costs.observe_step(work, seconds)

    def prompt_budget(self, budget: int, decodes: StepWork, context: int = 0) -> int:
        """Returns how many of `budget` tokens the prompts get beside these decodes.

        Args:
            budget: What the decodes leave of the tokens of a step.
            context: Tokens before those of the prompts, see `shared_context`.
        """
        if not decodes.decodes or not self._target_s:
            return budget
        decodes_s = self._costs.seconds(decodes)
        if not self._costs.knows_prompts:
            return min(budget, COLD_CHUNK) if decodes_s else budget
        rest_s = max(self._target_s / self._margin - decodes_s, LEAST_SHARE * decodes_s)
        return min(budget, max(MIN_CHUNK, self._costs.prompt_tokens_within(rest_s, context)))

    def shared_budget(self, budget: int, rows: int, context: int = 0) -> int:
        """Returns how many of `budget` tokens the prompts get while several parties use the engine.

        Args:
            budget: What `prompt_budget` has returned.
            rows: That decode; not all are of the party of each prompt. If there are none, a request of
                another party may come during the step, which then is to end within the target.
            context: Tokens before those of the prompts, see `shared_context`.
        """
        if not self._target_s or not self._costs.seconds(_ONE_DECODE):
            return budget
        if rows:
            most = self.pace.most_tokens(rows)
            return min(budget, COLD_CHUNK if most < 0 else most)
        if not self._costs.knows_prompts:
            return min(budget, COLD_CHUNK)
        one_s = self._costs.seconds(_ONE_DECODE)
        rest_s = max(self._target_s / self._margin - one_s, one_s)
        return min(budget, max(MIN_CHUNK, self._costs.prompt_tokens_within(rest_s, context)))

    def note_cut(self, budget: int) -> None:
        """Records that a step had no more prompt tokens than this budget allowed."""
        self.num_cuts += 1
        self._budget = budget

    def take_cuts(self) -> tuple[int, int]:
        """Returns how many steps were cut since the last call, and the last budget that cut one."""
        cuts, self.num_cuts = self.num_cuts, 0
        return cuts, self._budget
