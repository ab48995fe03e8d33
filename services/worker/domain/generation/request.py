"""A generation in the leader: its choices, and the numbered frames that its caller gets.

Turns sampled tokens into text (through a detokenizer that it is given), applies stop strings, and makes
frames. Which tokens are computed when is the scheduler's matter, sending frames the publisher's.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from services.worker.domain.generation.stop_strings import StopMatcher
from services.worker.domain.generation.turn_context import TurnContext
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.rank_protocol.plan import Sampled
from shared.codec import pack_tokens
from shared.errors import GroupLost, RyzError
from shared.messages import (
    Accepted,
    Delta,
    Done,
    Failed,
    FinishReason,
    GenerateRequest,
    KVSource,
    SessionOutcome,
    TokenLogprob,
    Tokens,
    TopLogprob,
    Usage,
)


def request_key(tenant: str, request_id: str) -> str:
    """Names a request in its leader: ids are the callers' own, and unique in a tenant only."""
    return f"{tenant}/{request_id}"


class Detokenizer(Protocol):
    """Tokens of one sequence to text, one after another."""

    def feed(self, token_id: int) -> str:
        """The text that is complete with this token; never a part of a UTF-8 character."""
        ...

    def flush(self) -> str:
        """What is left at the end; bytes that are no character become U+FFFD."""
        ...


TokenText = Callable[[int], str]


@dataclass(slots=True, eq=False)
class ChoiceState:
    """One answer: a sequence, its text so far, and what was not sent yet."""

    sequence: Sequence
    detokenizer: Detokenizer
    stops: StopMatcher | None
    token_text: TokenText
    finish_reason: FinishReason | None = None
    text: list[str] = field(default_factory=list)  # everything shown so far, in pieces
    unsent_text: str = ""
    unsent_tokens: list[int] = field(default_factory=list)
    unsent_logprobs: list[TokenLogprob] = field(default_factory=list)

    def advance(self, sampled: Sampled, reason: FinishReason | None) -> FinishReason | None:
        """Takes a token and the scheduler's reason to end, if any; returns the final one."""
        token_id = sampled.token_id
        piece, reason = self._text_of(token_id, reason)
        if piece:
            self.text.append(piece)
            self.unsent_text += piece
        self.unsent_tokens.append(token_id)
        if self.sequence.sampling.logprobs >= 0:
            self.unsent_logprobs.append(self._logprob(sampled))
        self.finish_reason = reason
        return reason

    def prime(self) -> FinishReason | None:
        """Takes the tokens that an earlier attempt has sent; their text is not sent again.

        Returns why the choice is over with them already; None: it goes on.
        """
        tokens, start = self.sequence.tokens, self.sequence.prompt_len
        last = len(tokens) - 1
        for index in range(start, len(tokens)):
            ended = self.sequence.end_reason() if index == last else None
            piece, self.finish_reason = self._text_of(tokens[index], ended)
            if piece:
                self.text.append(piece)
            if self.finish_reason is not None:
                break
        return self.finish_reason

    def take_delta(self) -> Delta | None:
        """What the caller has not got yet."""
        if not self.unsent_tokens:
            return None
        delta = Delta(
            choice=self.sequence.choice,
            text=self.unsent_text,
            token_ids=pack_tokens(self.unsent_tokens),
            logprobs=self.unsent_logprobs,
            finish_reason=self.finish_reason,
        )
        self.unsent_text, self.unsent_tokens = "", []
        if self.unsent_logprobs:
            self.unsent_logprobs = []
        return delta

    def _text_of(self, token_id: int, reason: FinishReason | None) -> tuple[str, FinishReason | None]:
        # an end-of-sequence token is not text, whether or not the tokenizer calls it special
        piece = "" if reason == "stop" else self.detokenizer.feed(token_id)
        if reason is not None:
            piece += self.detokenizer.flush()
        if self.stops is None:
            return piece, reason
        piece, stopped = self.stops.feed(piece)
        if stopped:
            return piece, "stop"
        return (piece + self.stops.flush() if reason is not None else piece), reason

    def _logprob(self, sampled: Sampled) -> TokenLogprob:
        text = self.token_text
        return TokenLogprob(
            token_id=sampled.token_id,
            token=text(sampled.token_id),
            logprob=sampled.logprob,
            top=[
                TopLogprob(token_id=a.token_id, token=text(a.token_id), logprob=a.logprob)
                for a in sampled.top
            ],
        )


@dataclass(slots=True, eq=False)
class Generation:
    """A request that this leader has taken. Every frame made here has the next number.

    `deadline`, `arrived` and the other times are on the leader's monotonic clock, in seconds.
    outside: it came from a service outside, whose word on attempts gives it no precedence.
    """

    request: GenerateRequest
    reply_to: str
    deadline: float
    arrived: float
    choices: list[ChoiceState] = field(default_factory=list)
    next_seq: int = 0
    prompt_tokens: int = 0
    open_choices: int = 0
    turn: TurnContext | None = None
    session_turns: int = 0
    session_version: int = -1  # of the session before this turn; -1: not known yet
    session: SessionOutcome | None = None
    started: bool = False  # with the scheduler
    first_token_at: float = 0.0
    last_token_at: float = 0.0
    last_flush_at: float = 0.0
    ended: bool = False
    outside: bool = False
    key: str = ""

    def __post_init__(self) -> None:
        self.key = request_key(self.request.tenant, self.request.request_id)
        self.next_seq = self.request.resume.next_seq if self.request.resume else 0

    @property
    def resumed(self) -> bool:
        """Whether it was admitted before, as far as that is believed: it gets in before others."""
        return self.request.attempt > 0 and not self.outside

    @property
    def has_all_tokens(self) -> bool:
        """Whether nothing is computed for it any more; its session's record may still be on its way."""
        return self.started and self.open_choices == 0

    @property
    def was_accepted(self) -> bool:
        """Whether the first frame was made."""
        return self.next_seq > (self.request.resume.next_seq if self.request.resume else 0)

    def accepted(
        self,
        group: str,
        reason: str,
        session_turns: int,
        *,
        kv: KVSource = "",
        instance_id: str = "",
        fingerprint: str = "",
    ) -> Accepted:
        """The first frame."""
        request = self.request
        return Accepted(
            request_id=request.request_id,
            attempt=request.attempt,
            seq=self._number(),
            group=group,
            reason=reason,
            session_id=request.session.session_id if request.session else "",
            session_turns=session_turns,
            kv=kv,
            instance_id=instance_id,
            fingerprint=fingerprint,
            session_version=self.session_version,
        )

    def tokens(self) -> Tokens | None:
        """Everything the caller has not got yet, as one frame; None if there is nothing."""
        deltas = [delta for choice in self.choices if (delta := choice.take_delta()) is not None]
        if not deltas:
            return None
        request = self.request
        return Tokens(
            request_id=request.request_id, attempt=request.attempt, seq=self._number(), deltas=deltas
        )

    def done(self) -> Done:
        """The last frame of a generation that ran its course."""
        # of the first choice: the others find what it computed
        cached = self.choices[0].sequence.cached_tokens if self.choices else 0
        fetched = self.choices[0].sequence.fetched_tokens if self.choices else 0
        usage = Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=sum(choice.sequence.num_output for choice in self.choices),
            cached_tokens=min(self.prompt_tokens, max(0, cached)),
            fetched_tokens=min(self.prompt_tokens, fetched),
        )
        self.ended = True
        request = self.request
        return Done(
            request_id=request.request_id,
            attempt=request.attempt,
            seq=self._number(),
            usage=usage,
            session=self.session,
        )

    def failed(self, error: RyzError) -> Failed:
        """The last frame of one that did not."""
        self.ended = True
        return failed_frame(self.request, error, self._number(), resumable=isinstance(error, GroupLost))

    def _number(self) -> int:
        seq = self.next_seq
        self.next_seq = seq + 1
        return seq


def failed_frame(request: GenerateRequest, error: RyzError, seq: int, *, resumable: bool = False) -> Failed:
    """An error as a frame. resumable: it is this group's, and another one may do better."""
    return Failed(
        request_id=request.request_id,
        attempt=request.attempt,
        seq=seq,
        code=error.code,
        message=error.message,
        data=error.data,
        resumable=resumable,
    )
