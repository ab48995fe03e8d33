"""A model's vocabulary as llguidance needs it: the bytes of each token, and which tokens are no text.

Control tokens have no bytes here, so no text of a grammar can be one of them: neither a mask nor a forced
text has such a token unless the grammar names it by its id. The text of a control token is spelled with other
tokens.
"""

import functools
import re
from collections.abc import Sequence, Set
from itertools import pairwise

from llguidance import LLTokenizer

from services.worker.text.patterns import beginnings
from services.worker.text.tokenizer import Tokenizer
from shared.errors import InvalidRequest

_MARK = "\n"  # keeps a tokenizer from putting a space before the text
_NO_BYTES = b"\xff"  # in no text


class QuoteTokens:
    """The tokens of a vocabulary that can end a key: those with a quote. Made once for each.

    Attributes:
        single: Tokens with one quote, by the bytes before it.
        others: Tokens with more quotes, or with a backslash before one, and their bytes.
    """

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.single: dict[bytes, list[int]] = {}
        self.others: list[tuple[int, bytes]] = []
        for token_id, data in enumerate(tokens):
            if data.count(b'"') > 1 or (b'"' in data and b"\\" in data):
                self.others.append((token_id, data))
            elif b'"' in data:
                self.single.setdefault(data.partition(b'"')[0], []).append(token_id)


class TokenVocabulary:
    """A vocabulary for grammars. Making it takes 0.2 s for 49,152 tokens, so it is made once. Thread-safe.

    Attributes:
        end_mask: A mask that has only these.
        text_mask: A mask that has all other tokens that the tokenizer knows.
        library: The same vocabulary, made for llguidance.
        tokens: Bytes of each token that the tokenizer knows.
        special_ids: Tokens that are no text.

    Args:
        eos_ids: Tokens that end an answer.
        vocab_size: Tokens of the model, which may be more than the tokenizer has, or fewer.
        control_texts: Texts of added tokens that are control tokens although they are not special
            (`Model.control_texts`); those of special tokens may be among them.

    Raises:
        InvalidRequest: No bytes are known of the tokenizer's tokens, or no token ends an answer.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        eos_ids: Set[int],
        vocab_size: int,
        control_texts: Set[str] = frozenset(),
    ) -> None:
        ends = sorted(token_id for token_id in eos_ids if token_id < vocab_size)
        if not tokenizer.has_token_bytes or not ends:
            lacks = "end-of-sequence token" if tokenizer.has_token_bytes else "tokenizer with known bytes"
            raise InvalidRequest(
                f"the model has no {lacks}, which grammars need; leave out what fixes the form of the answer",
                param="structured",
            )
        self.vocab_size = vocab_size
        self.ends = frozenset(ends)
        end_mask = bytearray((vocab_size + 7) // 8)
        for token_id in ends:
            end_mask[token_id // 8] |= 1 << token_id % 8
        self.end_mask = bytes(end_mask)
        self.text_mask = _without(min(vocab_size, tokenizer.vocab_size), self.end_mask)
        self.token_bytes = tokenizer.token_bytes
        wrapper = _Wrapper(tokenizer, ends, vocab_size, control_texts)
        self.library = LLTokenizer(wrapper, n_vocab=vocab_size, eos_token=ends)  # type: ignore[arg-type]
        wrapper.library = self.library
        self._written = frozenset(wrapper.texts)
        self.tokens = wrapper.tokens[: min(vocab_size, tokenizer.vocab_size)]
        self.special_ids = wrapper.special_token_ids

    def tokens_of(self, data: bytes) -> list[int]:
        """Returns tokens with these bytes, which need not be whole characters."""
        return self.library.tokenize_bytes(data)

    @functools.cached_property
    def unwritten(self) -> str:
        """The characters that no tokens spell, as the inside of a class of a regular expression; mostly none.

        SmolLM2 has no tokens for the bytes 0x04 and 0xF1, so it cannot write U+0004 or U+50000.
        """
        absent = [byte for byte in _UTF8_BYTES if bytes((byte,)) not in self._written]
        if not absent:
            return ""
        lacks = bytearray(_CODES)  # 1 at each character that is not spelled
        for byte in absent:
            first, behind = _characters_of(byte)
            lacks[first:behind] = b"\1" * (behind - first)
        lacks[0xD800:0xE000] = bytes(0x800)
        for text in self._written:
            if len(text) <= 4 and len(character := text.decode(errors="ignore")) == 1:
                lacks[ord(character)] = lacks[ord(character)] and character.encode() != text
        spans = (found.span() for found in re.finditer(b"\1+", lacks))
        return "".join(f"\\x{{{first:x}}}-\\x{{{behind - 1:x}}}" for first, behind in spans)

    @functools.cached_property
    def quote_tokens(self) -> QuoteTokens:
        """The tokens that can end a key of a JSON object."""
        special = frozenset(self.special_ids)
        return QuoteTokens([b"" if i in special else data for i, data in enumerate(self.tokens)])

    def unspelled(self, text: str) -> str:
        """Returns the first character of a text that no tokens spell; empty if there is none."""
        found = self._unwritten_pattern.search(text) if self.unwritten else None
        if found is None or self._spells(text.encode(errors="replace")):
            return ""
        return found[0]

    @functools.cached_property
    def _unwritten_pattern(self) -> re.Pattern[str]:
        spans = re.sub(r"\\x\{([0-9a-f]+)\}", lambda code: f"\\U{int(code[1], 16):08x}", self.unwritten)
        return re.compile(f"[{spans}]")

    @functools.cached_property
    def _longest(self) -> int:
        return max(map(len, self._written), default=0)

    def _spells(self, data: bytes) -> bool:
        """Returns whether some tokens have these bytes together, such as tokens of two characters."""
        reached = {0}
        for end in range(1, len(data) + 1):
            begins = range(max(0, end - self._longest), end)
            if any(begin in reached and data[begin:end] in self._written for begin in begins):
                reached.add(end)
        return len(data) in reached


_UTF8_BYTES = (*range(0xC0), *range(0xC2, 0xF5))
_CODES = 0x110000


def _characters_of(byte: int) -> tuple[int, int]:
    """Returns the first character that begins with a byte in UTF-8, and the one behind the last."""
    if byte < 0x80:
        return byte, byte + 1
    if byte < 0xC0:  # it continues characters
        return 0x80, _CODES
    if byte < 0xE0:
        return (byte & 0x1F) << 6, ((byte & 0x1F) + 1) << 6
    if byte < 0xF0:
        return max(0x800, (byte & 0xF) << 12), ((byte & 0xF) + 1) << 12
    return max(0x10000, (byte & 7) << 18), min(_CODES, ((byte & 7) + 1) << 18)


def _without(known: int, mask: bytes) -> bytes:
    """Returns a mask of the first `known` tokens that are not in another mask."""
    bits = ((1 << known) - 1) & ~int.from_bytes(mask, "little")
    return bits.to_bytes(len(mask), "little")


class _Wrapper:
    """What llguidance asks of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(
        self, tokenizer: Tokenizer, ends: list[int], vocab_size: int, control_texts: Set[str]
    ) -> None:
        texts = set(control_texts) | tokenizer.special_texts
        encoded = (tokenizer.encode(text, add_special_tokens=False) for text in texts)
        named = {ids[0] for ids in encoded if len(ids) == 1}
        special = {i for i in {*tokenizer.special_ids, *ends, *named} if i < vocab_size}
        known = min(vocab_size, tokenizer.vocab_size)
        self.eos_token_id = ends[0]
        self.special_token_ids = sorted(special)
        self.tokens = [
            tokenizer.token_text(i).encode() if i in special else tokenizer.token_bytes(i)
            for i in range(known)
        ] + [b""] * (vocab_size - known)
        self.library: LLTokenizer | None = None
        self.texts = [_NO_BYTES if i in special else data for i, data in enumerate(self.tokens)]
        self._plain = tokenizer.without(texts)
        self._control = beginnings(text for text in texts if len(text) > 1)

    def __call__(self, text: bytes | str) -> list[int]:
        """Returns tokens whose bytes are those of the text; none is a control token."""
        if isinstance(text, bytes):
            text = text.decode()
        return (
            self._exact(text)
            or self._in_parts(text)
            or (self.library.greedy_tokenize(text) if self.library is not None else [])
        )

    def _exact(self, text: str) -> list[int]:
        """Returns the tokenizer's tokens of a text; none if their bytes are others."""
        data = text.encode()
        ids = self._plain.encode(text, add_special_tokens=False)
        if self._bytes(ids) == data:
            return ids
        ids = self._plain.encode(_MARK + text, add_special_tokens=False)
        for cut in range(1, len(ids)):
            if self._bytes(ids[cut:]) == data:
                return ids[cut:]
        return []

    def _in_parts(self, text: str) -> list[int]:
        """Does the same for a text that is read as a control token: it is cut after its first character."""
        cuts = [found.end() for found in self._control.finditer(text)]
        parts = [text[begin:end] for begin, end in pairwise((0, *cuts, len(text))) if end > begin]
        encoded = [self._exact(part) for part in parts] if cuts else []
        return [token for ids in encoded for token in ids] if all(encoded) else []

    def _bytes(self, ids: list[int]) -> bytes:
        texts = self.texts
        return b"".join(texts[i] if i < len(texts) else _NO_BYTES for i in ids)
