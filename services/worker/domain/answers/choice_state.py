"""One choice of a request: its sequence, its text, and what the caller has not got yet.

Turns sampled tokens into text through a detokenizer, and applies stop strings.
"""

from dataclasses import dataclass, field
from typing import Protocol

from services.worker.domain.answers.parted_answer import PartedAnswer
from services.worker.domain.answers.prompt_answer import PromptAnswer, top_logprob
from services.worker.domain.answers.stop_strings import StopMatcher
from services.worker.domain.answers.token_spelling import SpellToken
from services.worker.domain.constraints.forced_tokens import force_first
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.rank_protocol.plan import Sampled
from shared.codec import pack_tokens
from shared.messages import ChatMessage, Delta, FinishReason, TokenLogprob


class Detokenizer(Protocol):
    """Turns the tokens of one sequence into text, one after another."""

    def feed(self, token_id: int) -> str:
        """Returns the text that is complete with this token; never a part of a UTF-8 character."""
        ...

    def flush(self) -> str:
        """Returns the rest at the end; bytes that are no character become U+FFFD."""
        ...


@dataclass(slots=True, eq=False)
class ChoiceState:
    """One choice of a request.

    Attributes:
        stops: Finds its stop strings; None if there are none.
        spell_token: Returns how a token is shown beside its log probability.
        finish_reason: Why it ended; None while it goes on.
        text: Everything shown so far, in pieces.
        unsent_text: Text that the caller has not got yet; likewise tokens and log probabilities.
        prompt: What is asked of the prompt, in the first choice only; None if nothing is.
        answer: Its typed parts; None if it has nothing but text.
        num_chars: Characters of its text so far, those that stop strings hold back included; counted where
            log probabilities are wanted.
    """

    sequence: Sequence
    detokenizer: Detokenizer
    stops: StopMatcher | None
    spell_token: SpellToken
    finish_reason: FinishReason | None = None
    text: list[str] = field(default_factory=list)
    unsent_text: str = ""
    unsent_tokens: list[int] = field(default_factory=list)
    unsent_logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt: PromptAnswer | None = None
    answer: PartedAnswer | None = None
    num_chars: int = 0

    def advance(self, sampled: Sampled, reason: FinishReason | None) -> FinishReason | None:
        """Takes a token and the scheduler's reason to end, if any; returns the final reason."""
        if self.prompt is not None and self.sequence.prompt_only:
            self.prompt.end = self.finish_reason = reason
            return reason
        token_id, offset = sampled.token_id, self.num_chars
        if reason is None and self.stops is None and self.answer is None:
            piece = self.detokenizer.feed(token_id)
            self.num_chars += len(piece)
        else:
            piece, reason = self._text_of(token_id, reason)
        if piece:
            self.text.append(piece)
            self.unsent_text += piece
        self.unsent_tokens.append(token_id)
        if self.sequence.sampling.logprobs >= 0:
            self.unsent_logprobs.append(self._logprob(sampled, offset))
        self.finish_reason = reason
        return reason

    def begin(self) -> None:
        """Takes the tokens that the grammar forces before the first one is sampled; after `prime`."""
        if self.finish_reason is not None:
            return
        run, start = force_first(self.sequence), len(self.sequence.tokens)
        for index, (token_id, reason) in enumerate(self.sequence.append_run(run), start + 1):
            if self.advance(Sampled(seq_id=0, token_id=token_id), reason) is not None:
                del self.sequence.tokens[index:]  # after a stop string
                return

    def prime(self) -> FinishReason | None:
        """Takes the tokens that an earlier attempt has sent; their text is not sent again.

        Returns:
            Why the choice ends with them; None if it goes on.
        """
        tokens, start = self.sequence.tokens, self.sequence.prompt_len
        last = len(tokens) - 1
        if self.stops is None and self.answer is None:  # nothing but the last token can end it
            self.text.append("".join([self.detokenizer.feed(token_id) for token_id in tokens[start:last]]))
            self.num_chars = len(self.text[-1])
            start = max(start, last)
        for index in range(start, len(tokens)):
            ended = self.sequence.end_reason() if index == last else None
            piece, self.finish_reason = self._text_of(tokens[index], ended)
            if piece:
                self.text.append(piece)
            if self.finish_reason is not None:
                break
        if self.answer is not None:
            self.answer.take_unsent()
        return self.finish_reason

    def message(self) -> ChatMessage:
        """Returns the answer as a message of the conversation."""
        text, answer = "".join(self.text), self.answer
        if answer is None:
            return ChatMessage(role="assistant", content=text)
        reasoning = "".join(answer.reasoning)
        return ChatMessage(role="assistant", content=text, tool_calls=answer.calls(), reasoning=reasoning)

    def take_delta(self) -> Delta | None:
        """Returns what the caller has not got yet, and counts it as sent.

        Forced tokens go out together, with the token before them: an answer must not be resumed among them.
        """
        if self.prompt is not None and (delta := self.prompt.take_delta()) is not None:
            return delta
        if not self.unsent_tokens or (self.sequence.forced and self.finish_reason is None):
            return None
        stop = self.stops.matched if self.stops is not None and self.finish_reason is not None else ""
        delta = Delta(
            choice=self.sequence.choice,
            text=self.unsent_text,
            token_ids=pack_tokens(self.unsent_tokens),
            logprobs=self.unsent_logprobs,
            finish_reason=self.finish_reason,
            stop=stop,
            parts=self.answer.take_unsent() if self.answer is not None else [],
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
        self.num_chars += len(piece)
        if self.answer is not None:
            return self.answer.read(piece, reason, self.stops)
        if self.stops is None:
            return piece, reason
        piece, stopped = self.stops.feed(piece)
        if stopped:
            return piece, "stop"
        return (piece + self.stops.flush() if reason is not None else piece), reason

    def _logprob(self, sampled: Sampled, offset: int) -> TokenLogprob:
        shown = self.spell_token(sampled.token_id)
        return TokenLogprob(
            token_id=sampled.token_id,
            token=shown.text,
            logprob=sampled.logprob,
            top=[top_logprob(self.spell_token, one.token_id, one.logprob) for one in sampled.top],
            raw=shown.raw,
            offset=offset,
        )
