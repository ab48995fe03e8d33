"""How many tokens of prompts take as long as the decodes beside them, by measured steps.

Beside decodes of another party, prompts get at most as much time as these, so that one party's prompts make
the tokens of another at most twice as slow. `StepCostModel` cannot estimate this time: while prompts keep
coming, all steps are alike, and nothing shows which part of them is whose. So steps that only decode are
averaged by themselves, and if none comes for a while, the prompts stand still for one. Pure.
"""

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
