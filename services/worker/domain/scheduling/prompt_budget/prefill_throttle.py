"""Limits the tokens of prompts in a step while other sequences decode, so that their tokens come evenly.

A sequence that decodes gets a token with each step, so the time of a step is its inter-token latency. The
prompts get what the decodes leave of the target, by the measured costs of steps, and always enough to get on.
Beside decodes of another party they get at most as much time as these. Runs that grammars
force are computed like prompts, and count as such. An engine that takes no time has no limit. Pure.

`SharedPace`: how many tokens of prompts take as long as the decodes beside them, by measured steps.

Beside decodes of another party, prompts get at most as much time as these, so that one party's prompts make
the tokens of another at most twice as slow. `StepCostModel` cannot estimate this time: while prompts keep
coming, all steps are alike, and nothing shows which part of them is whose. So steps that only decode are
averaged by themselves, and if none comes for a while, the prompts stand still for one. Pure.
"""

from services.worker.domain.scheduling.prompt_budget.step_costs import OUTLIER, StepCostModel, StepWork
from services.worker.rank_protocol.plan import BLOCK_SIZE

MIN_SHARED_CHUNK = BLOCK_SIZE // 2  # prompts get on by so many tokens a step, however slow the engine is
PROBE = 32  # steps with prompts in a row, after which there is one without
COLD_DECODE = 2.0  # tokens of a prompt that a decoded token counts for, before they were measured
MOST_DECODE = 64.0  # the same at most: a step with few rows reads all weights for them
_OUTLIER = 3.0  # times the average; what is longer counts as so long
# Weights of the newest step. A busy machine holds a step up now and then, which lengthens a short one most.
# What counts of those that only decode is their time undisturbed: their average falls faster than it rises.
_PLAIN_RISE, _PLAIN_FALL = 0.05, 0.3
_TOKEN_WEIGHT = 0.1
MIN_CHUNK = BLOCK_SIZE  # prompts get on by so many tokens a step, however slow the engine is
LEAST_SHARE = 0.25  # share of the decodes' time that goes to prompts, even if the target leaves less
COLD_CHUNK = 4 * BLOCK_SIZE  # tokens of prompts in a step before any were measured
_WITHIN = 0.999  # share of the steps that are to be within the target
_ADAPT = 0.06  # how fast the margin follows
_FIRST_MARGIN, _MOST_MARGIN = 1.3, 1.5
_DECODES_MEASURED = 8  # one of so many steps without prompts is measured
_ONE_DECODE = StepWork(decodes=1)


class SharedPace:
    """Averages steps that only decode, by the magnitude of their rows, and what a token of a prompt adds."""

    def __init__(self) -> None:
        self._plain_s = dict[int, float]()  # by bits of the number of rows
        self._token_s = 0.0
        self._since_plain = 0

    def observe_decodes(self, rows: int, seconds: float) -> None:
        """Books a step that only decoded; one that took no time is ignored."""
        if seconds > 0:
            self._since_plain = 0
            magnitude = rows.bit_length()
            self._plain_s[magnitude] = _follow(
                self._plain_s.get(magnitude, 0.0), seconds, _PLAIN_RISE, _PLAIN_FALL
            )

    def observe_prompts(self, rows: int, tokens: int, seconds: float) -> None:
        """Books a step with this many rows that decoded, and tokens of prompts or of forced runs."""
        plain_s = self._expected_s(rows)
        if plain_s and tokens and seconds > 0:
            token_s = max(0.0, seconds - plain_s) / tokens
            self._token_s = _follow(self._token_s, token_s, _TOKEN_WEIGHT, _TOKEN_WEIGHT)

    def most_tokens(self, rows: int) -> int:
        """Returns how many tokens of prompts a step gets beside so many rows that decode.

        0: none, to measure a step without; -1: it is not known.
        """
        plain_s = self._expected_s(rows)
        if plain_s and self._since_plain >= PROBE:
            self._since_plain = 0
            return 0
        self._since_plain += 1
        if not plain_s or not self._token_s:
            return -1
        return max(MIN_SHARED_CHUNK, int(plain_s / self._token_s))

    def decode_tokens(self, rows: int) -> float:
        """Returns how many tokens of a prompt take as long as one row of a step in which so many decode."""
        plain_s, rows = self._expected_s(rows), max(1, rows)
        if not plain_s or not self._token_s:
            return COLD_DECODE
        return min(max(plain_s / (rows * self._token_s), 1.0), MOST_DECODE)

    def _expected_s(self, rows: int) -> float:
        """Returns the seconds of a step that only decodes; 0: unknown. More rows do not take less."""
        magnitude = rows.bit_length()
        more = [seconds for known, seconds in self._plain_s.items() if known >= magnitude]
        return min(more) if more else max(self._plain_s.values(), default=0.0)


def _follow(average: float, value: float, rise: float, fall: float) -> float:
    if not average:
        return value
    change = min(value, _OUTLIER * average) - average
    return average + (rise if change > 0 else fall) * change


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
