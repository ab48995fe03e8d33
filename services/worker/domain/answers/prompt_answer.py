"""What a request asks of its prompt itself: text, log probabilities, embedding."""

import collections.abc
from dataclasses import dataclass, field

from services.worker.domain.answers.token_spelling import SpellToken
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.rank_protocol.prompt_parts import PromptPart
from shared.codec import pack_tokens
from shared.messages import Delta, FinishReason, TokenLogprob, TopLogprob

MAX_ITEMS = 4096  # log probabilities and their alternatives in a frame, which has to fit into a message
MAX_IDS = 65_536  # of the prompt's tokens in a frame
MAX_CHARS = 65_536  # of the prompt's text in a frame


@dataclass(slots=True, eq=False)
class PromptAnswer:
    """The prompt of the first choice of a request.

    Attributes:
        spell_token: Returns how a token is shown.
        offsets: Characters of the prompt's text before each token; empty: the text is not echoed.
        unsent_text: The prompt's text, if it is to be echoed.
        unsent_scores: Log probabilities of the next tokens of the prompt.
        unsent_ids: Next tokens of the prompt, if they are asked for.
        embedding: The embedding that is asked for, once it is there.
        end: Why a choice without tokens has ended; None: it has not, or the caller knows.
    """

    sequence: Sequence
    spell_token: SpellToken
    offsets: collections.abc.Sequence[int] = ()
    unsent_text: str = ""
    unsent_scores: list[TokenLogprob] = field(default_factory=list)
    unsent_ids: list[int] = field(default_factory=list)
    embedding: bytes = b""
    end: FinishReason | None = None

    def __post_init__(self) -> None:
        sequence = self.sequence
        if sequence.scored == 0:  # nothing comes before the first token
            self._add_score(0, 0.0)
            sequence.scored = 1

    @property
    def is_open(self) -> bool:
        """Whether there is more to send before the tokens of any choice."""
        return (
            bool(self.unsent_ids or self.unsent_text or self.unsent_scores) or self.sequence.is_scored_later
        )

    def add_part(self, part: PromptPart) -> None:
        """Takes what a step has brought."""
        self.embedding = part.embedding
        for index, score in enumerate(part.scores[: len(self.sequence.tokens) - part.first], part.first):
            top = [top_logprob(self.spell_token, other, value) for other, value in score.top]
            self._add_score(index, score.logprob, top)

    def take_delta(self) -> Delta | None:
        """Returns the next piece that the caller has not got, and counts it as sent."""
        if self.unsent_ids:
            ids, self.unsent_ids = self.unsent_ids[:MAX_IDS], self.unsent_ids[MAX_IDS:]
            return Delta(prompt_token_ids=pack_tokens(ids))
        if self.unsent_text:
            text, self.unsent_text = self.unsent_text[:MAX_CHARS], self.unsent_text[MAX_CHARS:]
            return Delta(prompt_text=text)
        if self.unsent_scores:
            most = max(1, MAX_ITEMS // (2 + self.sequence.sampling.prompt_logprobs))
            scores, self.unsent_scores = self.unsent_scores[:most], self.unsent_scores[most:]
            return Delta(prompt_logprobs=scores)
        if self.end is None:
            return None
        delta = Delta(embedding=self.embedding, finish_reason=self.end)
        self.embedding, self.end = b"", None
        return delta

    def _add_score(self, index: int, logprob: float, top: collections.abc.Sequence[TopLogprob] = ()) -> None:
        token_id = self.sequence.tokens[index]
        shown = self.spell_token(token_id)
        self.unsent_scores.append(
            TokenLogprob(
                token_id=token_id,
                token=shown.text,
                logprob=logprob,
                top=list(top),
                raw=shown.raw,
                offset=self.offsets[index] if self.offsets else -1,
            )
        )


def top_logprob(spell_token: SpellToken, token_id: int, logprob: float) -> TopLogprob:
    """Returns an alternative as callers see it."""
    shown = spell_token(token_id)
    return TopLogprob(token_id=token_id, token=shown.text, logprob=logprob, raw=shown.raw)
