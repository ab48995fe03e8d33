"""The attempts at one request: what is to be known to go on elsewhere, how often, and how soon.

Pure: what happens is decided here, when it happens in `assembly.py`. A group that is lost is answered by the
next attempt at once, on another one. A fleet that cannot take the request now is asked again after pauses
that grow, until the request's deadline: whoever reads the stream has been promised its rest.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass

from shared.backoff import backoff_s
from shared.client.settings import ClientSettings
from shared.messages import ResumePoint, Tokens
from shared.messages.base import MAX_ATTEMPT

FIRST_PAUSE_S = 0.025
MAX_PAUSE_S = 1.0


@dataclass(slots=True)
class Interruption:
    """A group was lost in mid-stream. Times on the client's clock, in seconds; 0: not yet.

    heard_at: its last tokens; before the first ones, its last word. lost_at: the loss was known here.
    accepted_at: another group had the request. resumed_at: new tokens came.
    """

    group: str
    reason: str
    heard_at: float
    lost_at: float
    accepted_at: float = 0.0
    resumed_at: float = 0.0


class RetryBudget:
    """How many requests of a client may be offered again in a second, beyond a burst of as many.

    A fleet that comes back is not to be drowned by those who waited for it.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._tokens = rate
        self._at = 0.0

    def take(self, now: float) -> bool:
        """Whether one more may go now."""
        self._tokens = min(self._rate, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class Attempts:
    """number: of the attempt that counts. accepted: some group has had the request. refusals: in a row.
    refusal: what the last of them said. crashes: engines that died while they computed the request.

    resume: where the first attempt here begins, if it goes on from an earlier one. fingerprint: of the
    weights that compute the answer. session_version: that the session had before this turn; -1: not known.
    """

    __slots__ = (
        "_max_losses", "_tokens", "_tokens_at", "accepted", "crashes", "fingerprint", "interruptions",
        "losses", "number", "refusal", "refusals", "session_version",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        num_choices: int,
        settings: ClientSettings,
        resume: ResumePoint | None = None,
        crashes: int = 0,
    ) -> None:
        self.crashes = crashes
        self.number = number
        self.accepted = False
        self.fingerprint = resume.fingerprint if resume is not None else ""
        self.session_version = resume.session_version if resume is not None else -1
        self.losses = 0
        self.interruptions: list[Interruption] = []
        before: Iterable[bytes] = resume.token_ids if resume is not None else [b""] * num_choices
        self._tokens = [bytearray(tokens) for tokens in before]
        self._tokens_at = 0.0
        self._max_losses = settings.max_losses
        self.refusals = 0
        self.refusal = ""

    def take(self, frame: Tokens, now: float) -> float:
        """New tokens came; returns how long the stream had paused if they are the first after a loss, else 0.

        A choice that was not asked for is for the reader to complain about.
        """
        for delta in frame.deltas:
            if delta.choice < len(self._tokens):
                self._tokens[delta.choice] += delta.token_ids
        self._tokens_at = now
        if self.interruptions and not self.interruptions[-1].resumed_at:
            self.interruptions[-1].resumed_at = now
            return now - self.interruptions[-1].heard_at
        return 0.0

    def accept(self, now: float) -> None:
        """A group has the request."""
        self.accepted = True
        self.refusals = 0
        if self.interruptions and not self.interruptions[-1].accepted_at:
            self.interruptions[-1].accepted_at = now

    def point(self, next_seq: int) -> ResumePoint | None:
        """Where another group goes on when frames up to that number have come; None: at the beginning."""
        if not next_seq:
            return None
        tokens = [bytes(one) for one in self._tokens]
        return ResumePoint(
            token_ids=tokens,
            next_seq=next_seq,
            fingerprint=self.fingerprint,
            session_version=self.session_version if any(tokens) else -1,
        )

    def lose(self, group: str, reason: str, heard_at: float, now: float) -> bool:
        """The group is lost; whether there is to be another attempt, which begins at once.

        A group that hangs may have answered questions until then: its reader waits since its last tokens.
        """
        self.losses += 1
        if self.losses > self._max_losses or self.number >= MAX_ATTEMPT:
            return False
        self.interruptions.append(Interruption(group, reason, self._tokens_at or heard_at, now))
        self.number += 1
        return True

    def refuse(self, why: str) -> float | None:
        """Nobody took this attempt; seconds until the next one, or None: it was the last."""
        if self.number >= MAX_ATTEMPT:
            return None
        self.number += 1
        self.refusal = why
        pause = backoff_s(self.refusals, FIRST_PAUSE_S, MAX_PAUSE_S)
        self.refusals += 1
        return pause * random.uniform(0.5, 1.0)
