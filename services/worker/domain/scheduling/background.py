"""Sequences of the lowest priority, which run in the room that others leave, such as requests of batches.

While the prompt of another request is computed they stand still. A request that comes during one of their
steps waits for its end, so while requests come now and then their steps are kept short: about as long as one
of a single sequence. Pure: time is an argument.
"""

from collections.abc import Sequence as Many
from collections.abc import Set

from services.worker.domain.scheduling.sequence import Sequence
from services.worker.rank_protocol.plan import BLOCK_SIZE
from shared.messages.base import BACKGROUND_PRIORITY

QUIET_S = 5.0  # without other requests; after that steps may be long
SLACK = 0.25  # factor by which a short step may be longer than one of a single sequence
PROBE = 200  # every so many short steps, one has a single sequence, to measure its time
MIN_CHUNK = BLOCK_SIZE // 2  # of background prompts in a step, so that they make progress
UNLIMITED = 2**31
_WEIGHT = 0.2  # weight of the newest measurement


def is_background(sequence: Sequence) -> bool:
    """Returns whether a sequence is background: preempted before all others."""
    return sequence.priority <= BACKGROUND_PRIORITY


def only_background(*queues: Many[Sequence]) -> bool:
    """True if every sequence is background; the queues are in order, so these come last."""
    for queue in queues:  # noqa: SIM110 (called several times a step; a generator costs three times as much)
        if queue and queue[0].priority > BACKGROUND_PRIORITY:
            return False
    return True


def has_background(running: Many[Sequence]) -> bool:
    """Returns whether such a sequence runs."""
    return bool(running) and is_background(running[-1])


def others_begin(running: Many[Sequence]) -> bool:
    """Returns whether the prompt of another request is computed now; its next chunk is in this step."""
    return any(
        not is_background(one) and one.remaining > 1 and not one.fetching and not one.has_run
        for one in running
    )


def held_back(running: Many[Sequence], most: int) -> Set[int]:
    """Returns the `id()`s of the sequences that stand still if so many of the background may decode.

    Their prompts are computed all the same, but for `most` 0, with which all stand still.
    """
    if most >= UNLIMITED:
        return frozenset()
    behind = [one for one in running if is_background(one) and (one.remaining == 1 or not most)]
    return {id(one) for one in behind[most:]}


class BackgroundPace:
    """Measures steps, and says how much of the background fits into a short one."""

    def __init__(self) -> None:
        self._others_s = -QUIET_S  # when another request was there last
        self._single_s = 0.0  # seconds of a step with one sequence that decodes
        self._token_s = 0.0  # seconds of a token in steps of prompts
        self._rows = 1
        self._measured = False
        self._steps = 0

    def see_others(self, now: float) -> None:
        """Notes that there is another request."""
        self._others_s = now

    def observe_step(self, num_rows: int, num_tokens: int, compute_s: float) -> None:
        """Books the time of a step.

        Args:
            num_tokens: Its tokens; as many if all decode.
        """
        if num_tokens > num_rows + MIN_CHUNK:
            token_s = compute_s / num_tokens
            self._token_s += (token_s - self._token_s) * (_WEIGHT if self._token_s else 1.0)
        elif num_rows == 1:
            self._single_s += (compute_s - self._single_s) * (_WEIGHT if self._measured else 1.0)
            self._measured = True
            self._rows = max(2, self._rows)  # one is on target, so two are tried
        elif num_rows >= self._rows:
            self._rows = self._rows + 1 if compute_s <= self._target_s else max(1, self._rows - 1)

    def rows(self, now: float, num_others: int) -> int:
        """Returns how many background sequences may decode in the next step beside so many others."""
        if self._long(now):
            return UNLIMITED
        self._steps += 1
        if not self._measured or self._steps % PROBE == 0:
            return 1
        return max(1, self._rows - num_others)

    def prompt_tokens(self, now: float, budget: int) -> int:
        """Returns how many tokens of background prompts may be computed in the next step."""
        if self._long(now) or not self._token_s:
            return budget
        # they come on top of what decodes, so they have the slack alone
        return min(budget, max(MIN_CHUNK, int(self._single_s * SLACK / self._token_s)))

    @property
    def _target_s(self) -> float:
        return self._single_s * (1 + SLACK)

    def _long(self, now: float) -> bool:
        return now - self._others_s >= QUIET_S or (self._measured and not self._single_s)
