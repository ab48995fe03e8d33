"""Converts tokens to text, one after another, in complete characters.

Most vocabularies define the bytes of a token (byte-level ones, and pieces with byte fallback); these need a
table and a UTF-8 decoder. Others are decoded by the library over a small window.
"""

import codecs
from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer as HfTokenizer

REPLACEMENT = "\ufffd"
SPACE = "\u2581"  # stands for a space in pieces
_PIECE_DECODERS = frozenset({"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"})


def _byte_alphabet() -> dict[str, int]:
    """Return the characters that stand for bytes in byte-level vocabularies (defined by GPT-2)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in plain)
    return {chr(byte): byte for byte in plain} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


def byte_level_bytes(token: str) -> bytes:
    """Return the bytes of a byte-level token; an added token outside the alphabet is plain text."""
    try:
        return bytes(_ALPHABET[character] for character in token)
    except KeyError:
        return token.encode()


def piece_bytes(token: str) -> bytes:
    """Return the bytes of a piece: `<0x0A>` is a byte, U+2581 a space, also at the start of an answer."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes((int(token[3:5], 16),))
        except ValueError:
            return token.encode()
    return token.replace(SPACE, " ").encode()


def bytes_rule(decoder: dict[str, Any] | None) -> Callable[[str], bytes] | None:
    """Return how tokens become bytes, by the `decoder` of a tokenizer file; None if it does not say."""
    if decoder is None:
        return None
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    if [step["type"] for step in steps] == ["ByteLevel"]:
        return byte_level_bytes
    if all(step["type"] in _PIECE_DECODERS and _is_space_rule(step) for step in steps):
        return piece_bytes
    return None


def _is_space_rule(step: dict[str, Any]) -> bool:
    """Return True if a step that replaces or strips text only concerns the spaces of pieces."""
    if step["type"] == "Replace":
        return bool(step["pattern"] == {"String": SPACE} and step["content"] == " ")
    if step["type"] == "Strip":
        return bool(step["content"] == " " and step["stop"] == 0)
    return bool(step.get("replacement", SPACE) == SPACE)


class BytesDetokenizer:
    """Looks up the bytes of tokens and joins them to characters."""

    __slots__ = ("_bytes_of", "_decode")

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._bytes_of = bytes_of
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def feed(self, token_id: int) -> str:
        """See `Detokenizer`."""
        return self._decode(self._bytes_of(token_id))

    def flush(self) -> str:
        """See `Detokenizer`."""
        return self._decode(b"", True)


class WindowDetokenizer:
    """Decodes the newest tokens together with those just before them, with the library.

    The new text is the part of the decoded window after its known beginning. It is held back while it ends in
    an incomplete character.
    """

    __slots__ = ("_known", "_num_known", "_tokenizer", "_window")

    def __init__(self, tokenizer: HfTokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._num_known = 0  # tokens of the window whose text was returned
        self._known = ""  # and that text, as the window shows it

    def feed(self, token_id: int) -> str:
        """See `Detokenizer`."""
        self._window.append(token_id)
        text = self._text(self._window)
        if text.endswith(REPLACEMENT) or len(text) <= len(self._known):
            return ""
        new = text[len(self._known) :]
        self._window = self._window[self._num_known :]
        self._num_known = len(self._window)
        self._known = self._text(self._window)
        return new

    def flush(self) -> str:
        """See `Detokenizer`."""
        new = self._text(self._window)[len(self._known) :]
        self._window, self._num_known, self._known = [], 0, ""
        return new

    def _text(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text
