"""A constraint that lets everything pass until a marker comes, and then follows the grammar of that marker.

For tools that a model may call or not: its text is free, a call that it begins is well formed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from services.worker.domain.generation.token_constraint import (
    ConstraintFactory,
    TokenConstraint,
    TokenRefused,
)
from services.worker.text.grammars.token_vocabulary import TokenVocabulary


@dataclass(frozen=True, slots=True)
class Trigger:
    """A marker, and what has to come after it.

    Attributes:
        marker: Text that ends the free part, as UTF-8 bytes; empty if `token_id` says it.
        token_id: A token that ends the free part; -1: none does.
        grammar: Of the text after the marker; it includes the closing marker if there is one.
    """

    grammar: ConstraintFactory
    marker: bytes = b""
    token_id: int = -1


class TriggeredConstraint:
    """See `TokenConstraint`; free, then bound, then free again.

    A token may hold the end of a marker and text behind it. That text goes into the grammar if the grammar
    takes it; if not, this marker counts as text, since the token has been chosen already.

    Args:
        triggers: The markers that are searched; of several that end at one index, the first counts.
        bound: A grammar that holds from the start, in place of the free part (`tool_choice: required`).
        repeats: After a grammar's end the text is free again; else only the end of the answer may come.
    """

    def __init__(
        self,
        vocabulary: TokenVocabulary,
        triggers: Sequence[Trigger],
        *,
        bound: ConstraintFactory | None = None,
        repeats: bool = True,
    ) -> None:
        self._vocabulary = vocabulary
        self._triggers = triggers
        self._repeats = repeats
        self._longest = max((len(trigger.marker) for trigger in triggers), default=0)
        self._bound: TokenConstraint | None = bound() if bound is not None else None
        self._tail = b""  # of the free text, as long as a marker may begin in it

    def accept(self, token_ids: Sequence[int]) -> None:
        """See `TokenConstraint`."""
        for token_id in token_ids:
            if self._bound is None:
                self._accept_free(token_id)
                continue
            self._bound.accept([token_id])
            if self._repeats and self._bound.ended:
                self._bound, self._tail = None, b""

    def mask(self) -> bytes | None:
        """See `TokenConstraint`."""
        return None if self._bound is None else self._bound.mask()

    def forced(self) -> list[int]:
        """See `TokenConstraint`."""
        return [] if self._bound is None else self._bound.forced()

    @property
    def ended(self) -> bool:
        """See `TokenConstraint`."""
        return self._bound is not None and self._bound.ended

    def _accept_free(self, token_id: int) -> None:
        data = self._vocabulary.token_bytes(token_id)
        for trigger in self._triggers:
            if trigger.token_id == token_id:
                self._begin(trigger, b"")
                return
        text = self._tail + data
        self._tail = text[-(self._longest - 1) :] if self._longest > 1 else b""
        for rest, trigger in self._found(text, len(data)):
            if self._begin(trigger, rest):
                return

    def _found(self, text: bytes, new: int) -> list[tuple[bytes, Trigger]]:
        """Returns the markers that end in the last `new` bytes, earliest first, each with the text behind."""
        found: list[tuple[int, Trigger]] = []
        for trigger in self._triggers:
            marker = trigger.marker
            at = text.find(marker, max(0, len(text) - new - len(marker) + 1)) if marker else -1
            while at >= 0:
                found.append((at + len(marker), trigger))
                at = text.find(marker, at + 1)
        return [(text[end:], trigger) for end, trigger in sorted(found, key=lambda each: each[0])]

    def _begin(self, trigger: Trigger, rest: bytes) -> bool:
        """Begins the grammar of a marker; returns whether it takes the text behind the marker."""
        bound = trigger.grammar()
        if rest:
            try:
                bound.accept(self._vocabulary.tokens_of(rest))
            except TokenRefused:
                return False
        self._bound, self._tail = bound, b""
        if self._repeats and bound.ended:
            self._bound = None
        return True
