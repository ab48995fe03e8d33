"""A constraint that lets no key come twice in one JSON object, beside a grammar that cannot say that.

Keys that a schema does not name (`patternProperties`, `additionalProperties`) could come again otherwise, and
a reader keeps the last value only. Where the grammar leaves no other key, the repeated one may come.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from services.worker.domain.generation.token_constraint import (
    ConstraintFactory,
    TokenConstraint,
    TokenRefused,
)
from services.worker.text.grammars.token_vocabulary import TokenVocabulary

_QUOTE, _BACKSLASH, _COMMA, _COLON = b'"'[0], b"\\"[0], b","[0], b":"[0]
_OPENS, _CLOSES = b"{[", b"}]"
_OBJECT = b"{"[0]


@dataclass(slots=True)
class JsonKeys:
    r"""The position in a JSON text that comes byte by byte, and the keys that the open objects have.

    Text around the JSON, such as the marks of a tool call, is passed over: only brackets and strings inside
    of them count. Keys are compared as they are written, which is one way for each key: grammars of schemas
    have no `\u`.

    Attributes:
        levels: For each open bracket the keys so far; None for arrays.
        key: What the open string has, if it is a key; None outside of keys.
        in_string: A string is open, key or not.
        escaped: The last byte is a backslash that escapes the next one.
        expects_key: The next string of the innermost object is a key.
        repeated: A key came twice in its object.
    """

    levels: list[set[bytes] | None] = field(default_factory=list)
    key: bytearray | None = None
    in_string: bool = False
    escaped: bool = False
    expects_key: bool = False
    repeated: bool = False

    @property
    def has_keys(self) -> bool:
        """An open object has keys that could come again."""
        return any(self.levels)

    def feed(self, data: bytes) -> None:
        """Takes the next bytes."""
        for byte in data:
            if self.in_string:
                self._in_string(byte)
            elif byte == _QUOTE:
                self.in_string = bool(self.levels)
                self.key = bytearray() if self.expects_key and self.in_string else None
            elif byte in _OPENS:
                self.levels.append(set() if byte == _OBJECT else None)
                self.expects_key = byte == _OBJECT
            elif byte in _CLOSES:
                if self.levels:
                    self.levels.pop()
                self.expects_key = False
            elif byte == _COMMA:
                self.expects_key = bool(self.levels) and self.levels[-1] is not None
            elif byte == _COLON:
                self.expects_key = False

    def _in_string(self, byte: int) -> None:
        if byte == _QUOTE and not self.escaped:
            self.in_string = False
            keys = self.levels[-1] if self.levels else None
            if self.key is not None and keys is not None:
                self.repeated = self.repeated or bytes(self.key) in keys
                keys.add(bytes(self.key))
            self.key = None
            return
        self.escaped = byte == _BACKSLASH and not self.escaped
        if self.key is not None:
            self.key.append(byte)

    def repeats_with(self, data: bytes) -> bool:
        """Whether a key comes twice with the next bytes that did not before; changes nothing."""
        copy = JsonKeys(
            [None if keys is None else set(keys) for keys in self.levels],
            None if self.key is None else bytearray(self.key),
            self.in_string,
            self.escaped,
            self.expects_key,
        )
        copy.feed(data)
        return copy.repeated


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
    """See `TokenConstraint`.

    Attributes:
        refuses: A token that repeats a key is refused: for guests, which follow no masks.
    """

    inner: TokenConstraint
    vocabulary: TokenVocabulary
    keys: JsonKeys = field(default_factory=JsonKeys)
    refuses: bool = False

    def accept(self, token_ids: Sequence[int]) -> None:
        """See `TokenConstraint`."""
        self.inner.accept(token_ids)
        for token_id in token_ids:
            if token_id not in self.vocabulary.ends:
                self.keys.feed(self.vocabulary.token_bytes(token_id))
        if self.refuses and self.keys.repeated:
            raise TokenRefused("a key comes twice in an object")

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
