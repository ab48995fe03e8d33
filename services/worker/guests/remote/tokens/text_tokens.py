"""Turns the text of an answer into tokens that say exactly this text.

They need not be those that the server sampled: only their bytes are promised. It holds for vocabularies whose
tokens have known bytes.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

from services.worker.guests.remote.wire.server_error import ServerError
from services.worker.text.tokenizer import Tokenizer

_CACHED = 8192  # pieces of text, most of which are one word
_MAX_CACHED = 64  # characters of a piece that is worth it
_ANCHOR = "\n"  # keeps a tokenizer from putting a space before a text


class TextTokens:
    """Tokens for the pieces of many answers.

    Args:
        tokenizer: One with `has_token_bytes`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._plain = tokenizer.without(tokenizer.special_texts)
        self._anchor = self._plain.encode(_ANCHOR, add_special_tokens=False)
        self._by_bytes: dict[bytes, int] = {}
        self._longest = 0
        self._cached: Callable[[str], tuple[int, ...]] = lru_cache(_CACHED)(self._make)

    def tokens(self, text: str) -> tuple[int, ...]:
        """Return tokens whose bytes are those of the text.

        Raises:
            ServerError: The vocabulary has no token for some of its bytes.
        """
        if not text:
            return ()
        return self._cached(text) if len(text) <= _MAX_CACHED else self._make(text)

    def bytes_of(self, token_ids: Sequence[int]) -> bytes:
        """Return the bytes that tokens add to an answer."""
        return b"".join(map(self._tokenizer.token_bytes, token_ids))

    def _make(self, text: str) -> tuple[int, ...]:
        data = text.encode()
        ids = self._plain.encode(text, add_special_tokens=False)
        if self.bytes_of(ids) != data:
            anchored = self._plain.encode(_ANCHOR + text, add_special_tokens=False)
            size = len(self._anchor)
            ids = anchored[size:] if anchored[:size] == self._anchor else []
        if self.bytes_of(ids) != data:
            ids = self._longest_matches(data)
        return tuple(ids)

    def _longest_matches(self, data: bytes) -> list[int]:
        """Return the longest token at each position, whatever the tokenizer would prefer."""
        if not self._by_bytes:
            for token_id in self._tokenizer.vocabulary().values():
                if spelled := self._tokenizer.token_bytes(token_id):
                    self._by_bytes.setdefault(spelled, token_id)
            self._longest = max(map(len, self._by_bytes), default=0)
        ids, at = list[int](), 0
        while at < len(data):
            for end in range(min(len(data), at + self._longest), at, -1):
                found = self._by_bytes.get(data[at:end])
                if found is not None:
                    ids.append(found)
                    at = end
                    break
            else:
                raise ServerError(f"sent text for which the tokenizer has no token: {data[at : at + 8]!r}")
        return ids


class AnswerText:
    """The text of one answer, whose pieces may end between the two halves of a UTF-16 pair."""

    __slots__ = ("_half", "_tokens")

    def __init__(self, tokens: TextTokens) -> None:
        self._tokens = tokens
        self._half = ""

    def feed(self, text: str) -> tuple[int, ...]:
        """Return the tokens of all characters that are complete."""
        if not self._half and text.isascii():
            return self._tokens.tokens(text)
        text = self._half + text
        self._half = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return self._tokens.tokens(_whole(text))

    def end(self) -> tuple[int, ...]:
        """Return the tokens of what is left: half a character is U+FFFD."""
        rest, self._half = self._half, ""
        return self._tokens.tokens(_whole(rest))


def _whole(text: str) -> str:
    """Join the halves of UTF-16 pairs; a half on its own becomes U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
