"""Finds the tokens that can spell a text, and how much of a text a longer token may have covered.

A text that was cut inside a token has other tokens at its end than the whole had. With those taken back, the
model can choose the token that it would have chosen without the cut.
"""

from bisect import bisect_left
from collections.abc import Sequence, Set
from typing import NamedTuple

from services.worker.text.tokenizer import Tokenizer

MAX_TAKEN_BACK = 16  # tokens


class TakenBack(NamedTuple):
    """The end of a text without its last tokens.

    Attributes:
        dropped: The last tokens; none if no longer token begins with any of them.
    """

    kept: list[int]
    dropped: list[int]


class TokenSpeller:
    """The texts of a vocabulary in order. Making it takes 0.1 s for 49,152 tokens. Thread-safe.

    Args:
        tokenizer: Of the model, with known bytes.
        vocab_size: Tokens of the model, which may be fewer than the tokenizer has.
        control_ids: Control tokens, special or not; they spell no text.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, control_ids: Set[int]) -> None:
        special = tokenizer.special_ids | control_ids
        known = range(min(vocab_size, tokenizer.vocab_size))
        named = [
            (data, token_id)
            for token_id in known
            if token_id not in special and (data := tokenizer.token_bytes(token_id))
        ]
        named.sort()
        self._tokenizer, self._special = tokenizer, special
        self._texts = [data for data, _ in named]
        self._ids = [token_id for _, token_id in named]
        self._longest = max(map(len, self._texts), default=0)

    def token_bytes(self, token_id: int) -> bytes:
        """See `Speller`."""
        return b"" if token_id in self._special else self._tokenizer.token_bytes(token_id)

    def mask(self, text: bytes) -> bytes:
        """See `Speller`."""
        bits = bytearray(max(self._ids, default=0) // 8 + 1)
        spelled = self._spelled_ends(text)
        for size in range(1, min(len(text), self._longest + 1)):
            if size in spelled:
                at = bisect_left(self._texts, text[:size])
                while at < len(self._texts) and self._texts[at] == text[:size]:
                    _set(bits, self._ids[at])
                    at += 1
        at = bisect_left(self._texts, text)
        while at < len(self._texts) and self._texts[at].startswith(text):
            _set(bits, self._ids[at])
            at += 1
        return bytes(bits)

    def take_back(self, token_ids: Sequence[int]) -> TakenBack:
        """Takes back the most last tokens whose text together is the beginning of a longer token."""
        size, text = 0, b""
        for count in range(1, min(len(token_ids), MAX_TAKEN_BACK) + 1):
            data = self.token_bytes(token_ids[-count])
            text = data + text
            if not data or len(text) >= self._longest:
                break
            if self._begins_longer(text):
                size = count
        end = len(token_ids) - size
        return TakenBack(list(token_ids[:end]), list(token_ids[end:]))

    def _begins_longer(self, text: bytes) -> bool:
        at = bisect_left(self._texts, text + b"\0")
        return at < len(self._texts) and self._texts[at].startswith(text)

    def _spelled_ends(self, text: bytes) -> set[int]:
        """The indices from which the rest of a text can be spelled; the last token may reach beyond."""
        ends = {len(text)}
        for at in range(len(text) - 1, -1, -1):
            spelled = any(end in ends and self._has(text[at:end]) for end in range(at + 1, len(text) + 1))
            if spelled or self._begins_longer(text[at:]):
                ends.add(at)
        return ends

    def _has(self, text: bytes) -> bool:
        at = bisect_left(self._texts, text)
        return at < len(self._texts) and self._texts[at] == text


def _set(bits: bytearray, token_id: int) -> None:
    bits[token_id // 8] |= 1 << token_id % 8
