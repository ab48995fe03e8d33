"""A constraint that lets no key come twice in one JSON object, beside a grammar that cannot say that.

Keys that a schema does not name (`patternProperties`, `additionalProperties`) could come again otherwise, and
a reader keeps the last value only. Where the grammar leaves no other key, the repeated one may come.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from services.worker.domain.generation.token_constraint import ConstraintFactory, TokenConstraint
from services.worker.text.grammars.json_keys import JsonKeys
from services.worker.text.grammars.token_vocabulary import TokenVocabulary


@dataclass(frozen=True, slots=True)
class UniqueKeysGrammar:
    """A grammar of JSON in which no key comes twice. A call makes the constraint of one choice."""

    inner: ConstraintFactory
    vocabulary: TokenVocabulary

    def __call__(self) -> "UniqueKeys":
        """Returns a constraint at the beginning of an answer."""
        return UniqueKeys(self.inner(), self.vocabulary)


@dataclass(slots=True)
class UniqueKeys:
    """See `TokenConstraint`."""

    inner: TokenConstraint
    vocabulary: TokenVocabulary
    keys: JsonKeys = field(default_factory=JsonKeys)

    def accept(self, token_ids: Sequence[int]) -> None:
        """See `TokenConstraint`."""
        self.inner.accept(token_ids)
        for token_id in token_ids:
            if token_id not in self.vocabulary.ends:
                self.keys.feed(self.vocabulary.token_bytes(token_id))

    def mask(self) -> bytes | None:
        """See `TokenConstraint`."""
        mask = self.inner.mask()
        if mask is None or not self.keys.has_keys:
            return mask
        refused = self._repeating(mask)
        if not refused:
            return mask
        made = bytearray(mask)
        for token_id in refused:
            made[token_id // 8] &= ~(1 << token_id % 8)
        return bytes(made) if any(made) else mask

    def forced(self) -> list[int]:
        """See `TokenConstraint`."""
        return self.inner.forced()

    @property
    def ended(self) -> bool:
        """See `TokenConstraint`."""
        return self.inner.ended

    def _repeating(self, mask: bytes) -> list[int]:
        """Returns tokens of a mask with which a key would come twice."""
        state, tokens = self.keys, self.vocabulary.quote_tokens
        found = [
            token_id
            for token_id, data in tokens.others
            if mask[token_id // 8] >> token_id % 8 & 1 and state.repeats_with(data)
        ]
        keys = state.levels[-1]
        if state.key is not None and keys and not state.escaped:
            begun = bytes(state.key)
            for key in keys:
                if key.startswith(begun):
                    found += tokens.single.get(key[len(begun) :], ())
        return found
