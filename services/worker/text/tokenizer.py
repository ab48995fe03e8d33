"""Text to tokens by the `tokenizers` library and the model's own `tokenizer.json`; the way back is
`detokenizer.py`.
"""

import json
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer as HfTokenizer

from services.worker.domain.generation.choice_state import Detokenizer
from services.worker.text.detokenizer import BytesDetokenizer, WindowDetokenizer, bytes_rule
from services.worker.text.token_bound import least_tokens
from shared.errors import InvalidRequest

LONG_CHARS = 256  # up to here the threads of a batch call cost as much as they are worth


class Tokenizer(Protocol):
    """A vocabulary. Thread-safe."""

    @property
    def vocab_size(self) -> int:
        """Token ids are below it."""
        ...

    @property
    def special_texts(self) -> frozenset[str]:
        """How the special tokens are spelled."""
        ...

    @property
    def added_texts(self) -> frozenset[str]:
        """How the tokens are spelled that are found in a text before anything else, special or not."""
        ...

    def least_tokens(self, text: str) -> int:
        """How many tokens `encode` gives at the least, told at once; 0 where that is not known."""
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
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = frozenset(token_id for token_id, token in added.items() if token.special)
        self.special_texts = frozenset(token.content for token in added.values() if token.special)
        self.added_texts = frozenset(token.content for token in added.values())
        spec = json.loads(self._tokenizer.to_str())
        self._rule = bytes_rule(spec.get("decoder"))
        self.least_tokens = least_tokens(spec)
        self._bytes: dict[int, bytes] = {}  # at most one entry per token of the vocabulary
        self.vocab_size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """See `Tokenizer`."""
        if len(text) > LONG_CHARS:
            # `encode` holds the interpreter's lock all the time, from whatever thread it is called
            (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        else:
            encoding = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def detokenizer(self) -> Detokenizer:
        """See `Tokenizer`."""
        return (
            WindowDetokenizer(self._tokenizer) if self._rule is None else BytesDetokenizer(self.token_bytes)
        )

    def token_text(self, token_id: int) -> str:
        """See `Tokenizer`."""
        if self._rule is not None and token_id not in self._special:
            return self.token_bytes(token_id).decode(errors="replace")
        text: str = self._tokenizer.decode([token_id], skip_special_tokens=False)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to the text; none for special tokens and unknown ids."""
        known = self._bytes.get(token_id)
        if known is not None:
            return known
        token: str | None = self._tokenizer.id_to_token(token_id)
        if token is None or token_id in self._special or self._rule is None:
            return b""
        data = self._bytes[token_id] = self._rule(token)
        return data
