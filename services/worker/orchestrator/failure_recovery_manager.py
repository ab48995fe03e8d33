"""Decides when the engine of a group is restarted after a failure, and whether its fork server is, too.

Pure: it gets the failure and the time, and counts failures in a row. All ranks of the group end with any
failure, since each holds a part of every sequence. `RULES` holds the differences between kinds of failure.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from services.worker.rank_protocol.failures import Failure, FailureKind
from shared.flow.backoff import backoff_s


class Rule(NamedTuple):
    """Special treatment of one kind of failure.

    Attributes:
        fresh: Restart the fork server as well.
        hopeless: The next start would most likely fail the same way, so it is not tried soon.
        least_pause_s: Shortest pause before the next start.
    """

    fresh: bool = False
    hopeless: bool = False
    least_pause_s: float = 0.0


RULES: Mapping[FailureKind, Rule] = {
    "rank_died": Rule(),
    "rank_hung": Rule(),
    "step_late": Rule(),
    "rank_failed": Rule(),
    # other processes may need the time to free memory
    "memory": Rule(fresh=True, least_pause_s=1.0),
    # what a process had on the GPU is void
    "device_error": Rule(fresh=True),
    "device_lost": Rule(fresh=True, hopeless=True),
    "start_failed": Rule(fresh=True),
    "refused": Rule(hopeless=True),
    "guest_lost": Rule(),
    "leader_bug": Rule(),
}


@dataclass(frozen=True, slots=True)
class RestartPauses:
    """Pauses before the engine is started again, in seconds.

    Attributes:
        first_s: After the first failure; doubles with each failure in a row. The lost requests start on other
            groups meanwhile, and need the cores if these are on the same host.
        longest_s: Upper limit, unless `first_s` is longer. With a start of two to three seconds the group is
            back within five.
        give_up_after: Failures in a row after which the group's state is "failed". Kills from outside do not
            count if the engine was ready before.
        given_up_s: Pause in that state.
        healthy_s: Time in service after which the next failure counts as a first one.
        jitter: Share by which a pause varies at random, so that groups do not start together.
    """

    first_s: float = 0.4
    longest_s: float = 1.5
    give_up_after: int = 5
    given_up_s: float = 30.0
    healthy_s: float = 3.0
    jitter: float = 0.25


class Recovery(NamedTuple):
    """Pause, then start the engine.

    Attributes:
        pause_s: Length of the pause.
        gives_up: The group's state is "failed" meanwhile.
        fresh: Restart the fork server as well.
    """

    pause_s: float
    gives_up: bool
    fresh: bool


class FailureRecoveryManager:
    """Counts the failures of one group and decides on its restarts.

    Args:
        back_off: Length of the pauses.
        draw: Gives random numbers in [0, 1).
    """

    def __init__(
        self, back_off: RestartPauses | None = None, draw: Callable[[], float] = random.random
    ) -> None:
        self._back_off = back_off or RestartPauses()
        self._draw = draw
        self._ready_since: float | None = None
        self.in_a_row = 0  # failures since the engine last worked for a while
        self._own_in_a_row = 0  # those of them that no signal from outside explains

    def engine_ready(self, now: float) -> None:
        """Note that the engine is in service."""
        self._ready_since = now

    def decide_recovery(self, failure: Failure, now: float) -> Recovery:
        """Count a failure, and decide when the engine is started again."""
        rule, limits = RULES[failure.kind], self._back_off
        was_ready = self._ready_since is not None
        if self._ready_since is not None and now - self._ready_since >= limits.healthy_s:
            self.in_a_row = self._own_in_a_row = 0
        self._ready_since = None
        self.in_a_row += 1
        if not (failure.outside and was_ready):
            self._own_in_a_row += 1
        gives_up = rule.hopeless or self._own_in_a_row > limits.give_up_after
        if gives_up:
            pause_s = limits.given_up_s
        else:
            longest_s = max(limits.longest_s, limits.first_s)
            pause_s = backoff_s(self.in_a_row - 1, limits.first_s, longest_s)
        pause_s = max(pause_s, rule.least_pause_s) * (1 + limits.jitter * (2 * self._draw() - 1))
        return Recovery(pause_s, gives_up, rule.fresh or self._own_in_a_row > 2)
