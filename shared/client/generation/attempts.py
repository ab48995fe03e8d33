"""Counts the attempts at one request, and keeps what the next one needs to go on elsewhere. Pure.

When a group is lost the next attempt starts at once on another group. When the fleet cannot take the request,
attempts follow after pauses that grow, until the request's deadline. `GenerationState` decides when.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass

from shared.client.generation.assigned_leader import AssignedLeader
from shared.client.generation.client_context import HeardLeaders
from shared.client.settings import ClientSettings
from shared.errors import RyzError
from shared.flow.backoff import backoff_s
from shared.messages import Accepted, GenerateRequest, ResumePoint, Tokens
from shared.messages.answer_parts import Resumed
from shared.messages.base import MAX_ATTEMPT

FIRST_PAUSE_S = 0.025
MAX_PAUSE_S = 1.0
# Losses that were concluded from silence. In the others the leader itself has answered.
INFERRED = frozenset({"disconnected", "silent", "no_responders", "no_answer"})


@dataclass(slots=True)
class Interruption:
    """The loss of a group in mid-stream. Times are in seconds on the client's clock.

    Attributes:
        group: The group that was lost.
        instance_id: Its instance; empty: not known.
        reason: Why, as in `GroupDown` or `Failed`.
        heard_at: Its last tokens; before the first ones, its last frame or answer.
        lost_at: When the client learned of the loss.
        accepted_at: When another group had the request; 0: not yet.
        resumed_at: When new tokens came; 0: not yet.
        silent_since: Its last tokens; before the first ones, when it took the request.
    """

    group: str
    reason: str
    heard_at: float
    lost_at: float
    accepted_at: float = 0.0
    resumed_at: float = 0.0
    silent_since: float = 0.0
    instance_id: str = ""

    def is_false(self, heard: HeardLeaders) -> bool:
        """Whether the leader, which was given up for its silence, has been heard since."""
        return self.reason in INFERRED and heard.outlived(self.instance_id, self.lost_at)


class Attempts:
    """The attempts at one request so far.

    Attributes:
        number: The current attempt.
        accepted: Whether any group has had the request.
        crashes: Engines that died while they computed the request, as in `GenerateRequest`.
        losses: Groups that were lost, false losses included.
        interruptions: The losses after which the request went on.
        refusals: Attempts in a row that no group took.
        repeats: Refusals of the current number: one that waits keeps it.
        refusal: The last refusal.
        sampling: The request's parameters of sampling, with the defaults of the first group that took it.
        resumed: As in `Accepted`, of the newest one.
    """

    __slots__ = (
        "_fingerprint", "_max_losses", "_prompt_ids", "_prompt_logprobs", "_prompt_text", "_session_version",
        "_taken_at", "_tokens", "_tokens_at", "accepted", "crashes", "interruptions", "losses", "number",
        "refusal", "refusals", "repeats", "resumed", "sampling",
    )  # fmt: skip

    def __init__(self, request: GenerateRequest, settings: ClientSettings) -> None:
        resume = request.resume
        self.crashes = request.crashes
        self.sampling = request.sampling
        self.number = request.attempt
        self.accepted = False
        self.losses = 0
        self.interruptions: list[Interruption] = []
        self.refusals = 0
        self.repeats = 0
        self.refusal: RyzError | None = None
        before: Iterable[bytes] = resume.token_ids if resume is not None else [b""] * request.sampling.n
        self._tokens = [bytearray(tokens) for tokens in before]
        self._tokens_at = 0.0
        self._taken_at = 0.0  # when a group took this attempt; 0: none has
        self._prompt_logprobs = resume.prompt_logprobs if resume is not None else 0
        self._prompt_text = resume.prompt_text if resume is not None else 0
        self._prompt_ids = resume.prompt_ids if resume is not None else 0
        self._fingerprint = resume.fingerprint if resume is not None else ""
        self.resumed: Resumed = resume.resumed if resume is not None else ""
        self._session_version = resume.session_version if resume is not None else -1
        self._max_losses = settings.max_losses

    @property
    def num_tokens(self) -> int:
        """Tokens of the answer that have come, those of earlier attempts included."""
        return sum(map(len, self._tokens)) // 4

    def add_tokens(self, frame: Tokens, now: float) -> float:
        """Keep new tokens for a later attempt.

        Tokens of a choice that was not asked for are left out here; `gather` raises for them.

        Returns:
            How long the stream had paused, in seconds, if these are the first tokens after a loss; else 0.
        """
        for delta in frame.deltas:
            if delta.choice < len(self._tokens):
                self._tokens[delta.choice] += delta.token_ids
            if delta.prompt_logprobs or delta.prompt_text or delta.prompt_token_ids:
                self._prompt_ids += len(delta.prompt_token_ids) // 4
                self._prompt_logprobs += len(delta.prompt_logprobs)
                self._prompt_text += len(delta.prompt_text)
        self._tokens_at = now
        if self.interruptions and not self.interruptions[-1].resumed_at:
            self.interruptions[-1].resumed_at = now
            return now - self.interruptions[-1].heard_at
        return 0.0

    def note_group(self, now: float) -> None:
        """A group has the request."""
        self.accepted = True
        self._taken_at = self._taken_at or now
        self.refusals = 0
        if self.interruptions and not self.interruptions[-1].accepted_at:
            self.interruptions[-1].accepted_at = now

    def note_accepted(self, frame: Accepted) -> None:
        """Keep what the group says about the weights, the session and its defaults."""
        if frame.sampling is not None:
            self.sampling = self.sampling.with_defaults(frame.sampling)
        self._fingerprint, self.resumed = frame.fingerprint, frame.resumed or self.resumed
        if frame.session_version >= 0:
            self._session_version = frame.session_version

    def count_crash(self) -> None:
        """The request is suspected of having crashed an engine."""
        self.crashes += 1

    def resume_point(self, next_seq: int) -> ResumePoint | None:
        """Where another group goes on after the frames below `next_seq`; None: at the beginning."""
        if not next_seq:
            return None
        tokens = [bytes(one) for one in self._tokens]
        return ResumePoint(
            token_ids=tokens,
            next_seq=next_seq,
            fingerprint=self._fingerprint,
            session_version=self._session_version if any(tokens) else -1,
            prompt_logprobs=self._prompt_logprobs,
            prompt_text=self._prompt_text,
            prompt_ids=self._prompt_ids,
            resumed=self.resumed,
        )

    def count_loss(
        self, leader: AssignedLeader, reason: str, heard_at: float, now: float, heard: HeardLeaders
    ) -> bool:
        """The leader is lost; returns whether the next attempt starts.

        Losses that have proved false do not count against the limit. A group that hangs may have answered
        questions until now, so the pause counts from its last tokens.
        """
        self.losses += 1
        real = self.losses - sum(one.is_false(heard) for one in self.interruptions)
        if real > self._max_losses or not self.advance():
            return False
        silent_since = max(self._tokens_at, self._taken_at) or heard_at
        heard_at = self._tokens_at or heard_at
        self.interruptions.append(
            Interruption(
                leader.group,
                reason,
                heard_at,
                now,
                silent_since=silent_since,
                instance_id=leader.instance_id,
            )
        )
        self._taken_at = 0.0
        return True

    def advance(self) -> bool:
        """Go on to the next number, so that frames of the last one are ignored; False if there is none."""
        if self.number >= MAX_ATTEMPT:
            return False
        self.number += 1
        self.repeats = 0
        return True

    def count_refusal(self, refusal: RyzError, longest_s: float | None = None) -> float:
        """No group took this attempt; returns the seconds until it is offered again, at most `longest_s`."""
        self.refusal = refusal
        longest_s = MAX_PAUSE_S if longest_s is None else longest_s
        pause = backoff_s(self.refusals, FIRST_PAUSE_S, longest_s)
        self.refusals += 1
        self.repeats += 1
        return pause * random.uniform(0.5, 1.0)
