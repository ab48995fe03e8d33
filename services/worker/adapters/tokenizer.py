"""Text to tokens and back, by the `tokenizers` library and the model's own `tokenizer.json`.

Detokenization is incremental: for byte-level vocabularies a table from token to bytes and a UTF-8
decoder, for the others the library's `DecodeStream`. Neither ever splits a character.
"""

import codecs
import json
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer as HfTokenizer
from tokenizers.decoders import DecodeStream

from services.worker.domain.request import Detokenizer
from shared.errors import InvalidRequest

REPLACEMENT = "\ufffd"


class Tokenizer(Protocol):
    """A vocabulary. Thread-safe."""

    @property
    def vocab_size(self) -> int:
        """Token ids are below it."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The tokens of a text; special tokens that are spelled out in it count as such."""
        ...

    def detokenizer(self) -> Detokenizer:
        """A new one, for one sequence; special tokens are left out of its text."""
        ...

    def token_text(self, token_id: int) -> str:
        """One token as text by itself, special ones spelled out; incomplete characters become U+FFFD."""
        ...


def _byte_alphabet() -> dict[str, int]:
    """The characters that stand for bytes in byte-level vocabularies (as GPT-2 defined them)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in plain)
    return {chr(byte): byte for byte in plain} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


class FileTokenizer:
    """A `tokenizer.json`."""

    def __init__(self, path: Path) -> None:
        try:
            self._tokenizer = HfTokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exceptions
            raise InvalidRequest(
                f"{path} is not a tokenizer that can be read: {error}", param="model"
            ) from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        described = json.loads(self._tokenizer.to_str())
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = frozenset(token_id for token_id, token in added.items() if token.special)
        self._is_byte_level = (described.get("decoder") or {}).get("type") == "ByteLevel"
        self._alphabet = _byte_alphabet()
        self._bytes: dict[int, bytes] = {}  # at most one entry per token of the vocabulary
        self.vocab_size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """See `Tokenizer`."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def detokenizer(self) -> Detokenizer:
        """See `Tokenizer`."""
        return _ByteLevelDetokenizer(self) if self._is_byte_level else _StreamDetokenizer(self._tokenizer)

    def token_text(self, token_id: int) -> str:
        """See `Tokenizer`."""
        if self._is_byte_level and token_id not in self._special:
            return self.token_bytes(token_id).decode(errors="replace")
        text: str = self._tokenizer.decode([token_id], skip_special_tokens=False)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to the text; none for special tokens and unknown ids."""
        known = self._bytes.get(token_id)
        if known is not None:
            return known
        token: str | None = self._tokenizer.id_to_token(token_id)
        if token is None or token_id in self._special:
            return b""
        try:
            data = bytes(self._alphabet[character] for character in token)
        except KeyError:  # an added token outside the alphabet is plain text
            data = token.encode()
        self._bytes[token_id] = data
        return data


class _ByteLevelDetokenizer:
    """Looks the bytes up and joins them to characters."""

    __slots__ = ("_decode", "_token_bytes")

    def __init__(self, tokenizer: FileTokenizer) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def feed(self, token_id: int) -> str:
        return self._decode(self._token_bytes(token_id))

    def flush(self) -> str:
        return self._decode(b"", True)


class _StreamDetokenizer:
    """The library's stream; what it still holds at the end is decoded against the text before it."""

    __slots__ = ("_recent", "_stream", "_tokenizer", "_unshown")

    def __init__(self, tokenizer: HfTokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._recent: list[int] = []  # the tokens of the last text shown
        self._unshown: list[int] = []  # those after it

    def feed(self, token_id: int) -> str:
        self._unshown.append(token_id)
        text: str | None = self._stream.step(self._tokenizer, token_id)
        if not text:
            return ""
        self._recent, self._unshown = self._unshown, []
        return text

    def flush(self) -> str:
        if not self._unshown:
            return ""
        before: str = self._tokenizer.decode(self._recent, skip_special_tokens=True)
        whole: str = self._tokenizer.decode(self._recent + self._unshown, skip_special_tokens=True)
        self._unshown = []
        return whole.removeprefix(before)
