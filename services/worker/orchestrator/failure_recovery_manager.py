"""Decides what follows a failure of the group's engine: whether and when it is started again, and how anew.

Pure: it is told the failure and the time, and keeps the count of failures in a row. Whatever fails, all ranks
of the group end, since each holds a part of every sequence; what the rules differ in stands in `RULES`.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from services.worker.rank_protocol.failures import Failure, FailureKind
from shared.backoff import backoff_s


class Rule(NamedTuple):
    """What is special about a kind of failure.

    fresh: what ranks are forked from is started anew as well. hopeless: the next start would most likely fail
    the same way, so it is not tried soon. least_pause_s: before the next start.
    """

    fresh: bool = False
    hopeless: bool = False
    least_pause_s: float = 0.0


RULES: Mapping[FailureKind, Rule] = {
    "rank_died": Rule(),
    "rank_hung": Rule(),
    "step_late": Rule(),
    "rank_failed": Rule(),
    # others may need the time to give some back
    "memory": Rule(fresh=True, least_pause_s=1.0),
    "start_failed": Rule(fresh=True),
    "refused": Rule(hopeless=True),
    "leader_bug": Rule(),
}


@dataclass(frozen=True, slots=True)
class RestartPauses:
    """How long to wait before the engine is started again; all in seconds.

    first_s: after the first failure. The requests that the group lost begin elsewhere meanwhile, and on one
        host they need the cores. It doubles with each further one in a row.
    longest_s: the most that it grows to, unless the first is longer. With a start of two to three seconds
        behind it, the group is still back within five.
    give_up_after: so many failures in a row are tried again like that; then the group says that it failed,
        and waits given_up_s each time.
    healthy_s: ready for so long makes the next failure a first one again.
    jitter: each wait is longer or shorter by up to that share, so that groups do not start together.
    """

    first_s: float = 0.4
    longest_s: float = 1.5
    give_up_after: int = 5
    given_up_s: float = 30.0
    healthy_s: float = 3.0
    jitter: float = 0.25


class Recovery(NamedTuple):
    """What to do: wait, then start the engine.

    Attributes:
        pause_s: How long to wait.
        gives_up: Whether the group says that it failed; see `RestartPauses.give_up_after`.
        fresh: As in `Rule`.
    """

    pause_s: float
    gives_up: bool
    fresh: bool


class FailureRecoveryManager:
    """One group's. draw: random numbers of [0, 1)."""

    def __init__(
        self, back_off: RestartPauses | None = None, draw: Callable[[], float] = random.random
    ) -> None:
        self._back_off = back_off or RestartPauses()
        self._draw = draw
        self._ready_since: float | None = None
        self.in_a_row = 0  # failures since the engine last worked for a while

    def engine_ready(self, now: float) -> None:
        """The engine is up."""
        self._ready_since = now

    def decide_recovery(self, failure: Failure, now: float) -> Recovery:
        """What follows that failure."""
        rule, limits = RULES[failure.kind], self._back_off
        if self._ready_since is not None and now - self._ready_since >= limits.healthy_s:
            self.in_a_row = 0
        self._ready_since = None
        self.in_a_row += 1
        gives_up = rule.hopeless or self.in_a_row > limits.give_up_after
        if gives_up:
            pause_s = limits.given_up_s
        else:
            longest_s = max(limits.longest_s, limits.first_s)
            pause_s = backoff_s(self.in_a_row - 1, limits.first_s, longest_s)
        pause_s = max(pause_s, rule.least_pause_s) * (1 + limits.jitter * (2 * self._draw() - 1))
        return Recovery(pause_s, gives_up, rule.fresh or self.in_a_row > 2)
