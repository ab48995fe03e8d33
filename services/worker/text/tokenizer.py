"""Converts text to tokens with the `tokenizers` library.

A model's tokenizer comes from its `tokenizer.json`, or is built from a GGUF file by `from_gguf/`.
"""

import json
import os
import secrets
from collections.abc import Mapping, Set
from copy import copy
from pathlib import Path
from typing import Any, Protocol

from tokenizers import AddedToken, models
from tokenizers import Tokenizer as HfTokenizer

from services.worker.domain.answers.choice_state import Detokenizer
from services.worker.domain.answers.token_spelling import TokenSpelling, spell
from services.worker.model_files.json_files import shown
from services.worker.text.detokenizer import BytesDetokenizer, WindowDetokenizer, bytes_rule
from services.worker.text.token_bound import least_tokens
from shared.errors import InvalidRequest

# Otherwise the library hands even a batch of one text to a thread of its own.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class Tokenizer(Protocol):
    """A vocabulary. Thread-safe."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        ...

    @property
    def special_texts(self) -> frozenset[str]:
        """Texts of the special tokens."""
        ...

    @property
    def added_texts(self) -> frozenset[str]:
        """Texts of the added tokens, which are found in a text before all others, special or not."""
        ...

    def least_tokens(self, text: str) -> int:
        """Return a lower bound for the number of tokens of a text, at once; 0 if it is not known."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Tokenize a text; the text of a special token becomes that token."""
        ...

    def without(self, texts: Set[str]) -> "Tokenizer":
        """Return a tokenizer of this vocabulary that reads these texts of added tokens like any other text.

        Where that is not possible, it is the tokenizer itself.
        """
        ...

    def detokenizer(self) -> Detokenizer:
        """Return a new detokenizer for one sequence; it leaves out special tokens."""
        ...

    def token_text(self, token_id: int) -> str:
        """Return the text of one token, special or not; incomplete characters become U+FFFD."""
        ...

    def spelling(self, token_id: int) -> TokenSpelling:
        """Return how one token is shown beside its log probability."""
        ...

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of tokens, that of special ones included."""
        ...

    def vocabulary(self) -> dict[str, int]:
        """Return the id of each token by its name in the tokenizer's file, those of added tokens included."""
        ...

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of the special tokens, which add nothing to the text."""
        ...

    @property
    def has_token_bytes(self) -> bool:
        """Whether `token_bytes` is known: an answer is the bytes of its tokens, one after another."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to the text; none for special tokens and unknown ids."""
        ...


def read_tokenizer(path: Path) -> "LibraryTokenizer":
    """Read a `tokenizer.json`.

    Raises:
        InvalidRequest: The library cannot read it.
    """
    try:
        tokenizer = HfTokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exceptions
        raise InvalidRequest(f"{path} is not a tokenizer that can be read: {error}", param="model") from error
    return LibraryTokenizer(tokenizer)


class LibraryTokenizer:
    """A tokenizer of the library.

    Args:
        tokenizer: The tokenizer; padding and truncation are switched off.
        num_rows: Rows of the embedding, if `within` has checked that no token is beyond it.

    Attributes:
        added_ids: The ids of `added_texts`.
    """

    def __init__(self, tokenizer: HfTokenizer, num_rows: int | None = None) -> None:
        self._tokenizer = tokenizer
        self._num_rows = num_rows
        tokenizer.no_padding()
        tokenizer.no_truncation()
        added = tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.special_texts = frozenset(token.content for token in added.values() if token.special)
        self.added_ids = {token.content: token_id for token_id, token in added.items()}
        self.added_texts = frozenset(self.added_ids)
        spec = _description(tokenizer)
        self._rule = bytes_rule(spec["decoder"])
        self.least_tokens = least_tokens(spec)
        self.has_token_bytes = self._rule is not None
        self._bytes: dict[int, bytes] = {}  # at most one entry per token of the vocabulary
        self._spellings: dict[int, TokenSpelling] = {}  # likewise
        vocab = spec["model"]["vocab"]
        # ids may have gaps, so that the highest one is more than their number
        size = len(vocab) if isinstance(vocab, list) else 1 + max(vocab.values(), default=-1)
        size = max(size, *(token_id + 1 for token_id in added)) if added else size
        self.vocab_size: int = size if num_rows is None else min(size, num_rows)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """See `Tokenizer`."""
        # unlike `encode` it releases the interpreter's lock, and computes no offsets in the text
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def without(self, texts: Set[str]) -> "LibraryTokenizer":
        """See `Tokenizer`. The vocabulary and its merges are shared."""
        other = self._with_added(
            {text: token_id for text, token_id in self.added_ids.items() if text not in texts}
        )
        if other is None:
            return self
        made = copy(self)  # what is known of the vocabulary stays true
        made._tokenizer = other
        return made

    def within(self, num_rows: int) -> "LibraryTokenizer":
        """Return a tokenizer that makes no token beyond the embedding; itself if the vocabulary has none.

        Added tokens beyond it are left out, so that their texts are read like any other text.

        Args:
            num_rows: Rows of the embedding.

        Raises:
            ValueError: There are other tokens beyond it; the text says which.
        """
        if self.vocab_size <= num_rows:
            return self
        beyond = {text: token_id for text, token_id in self.vocabulary().items() if token_id >= num_rows}
        ordinary = {text: token_id for text, token_id in beyond.items() if text not in self.added_ids}
        kept = {text: token_id for text, token_id in self.added_ids.items() if token_id < num_rows}
        other = self._with_added(kept) if not ordinary else None
        if other is not None:
            other.post_processor = self._tokenizer.post_processor
            made = type(self)(other, num_rows)
            ordinary = beyond if any(made._makes_beyond(text) for text in ("", *beyond)) else {}
            if not ordinary:
                return made
        refused = ordinary or beyond
        text, token_id = min(refused.items(), key=lambda item: item[1])
        raise ValueError(
            f"the embedding has {num_rows} rows, and {len(refused)} tokens of the tokenizer beyond it are "
            f"ordinary ones or are put around each text; the first one is {shown(text)} with the id "
            f"{token_id}. Use the tokenizer that belongs to these weights"
        )

    def _makes_beyond(self, text: str) -> bool:
        return any(token_id >= self.vocab_size for token_id in self.encode(text, add_special_tokens=True))

    def _with_added(self, kept: Mapping[str, int]) -> HfTokenizer | None:
        """Return a tokenizer that shares vocabulary and merges, with only these added tokens.

        Returns:
            The tokenizer. None if a token would have another id there.
        """
        other = HfTokenizer(self._tokenizer.model)
        for part in ("normalizer", "pre_tokenizer", "decoder"):
            if getattr(self._tokenizer, part) is not None:
                setattr(other, part, getattr(self._tokenizer, part))
        last = max(kept.values(), default=-1)
        tokens = list[AddedToken]()
        for token_id, token in sorted(self._tokenizer.get_added_tokens_decoder().items()):
            if token.content in kept:
                tokens.append(token)
            elif token_id < last and other.token_to_id(token.content) is None:
                # one that is in no vocabulary keeps its place, so that those after it keep their ids
                unused = f"\ue000{token_id}{secrets.token_hex(8)}\ue000"
                tokens.append(AddedToken(unused, normalized=False))
        other.add_tokens(tokens)
        return other if all(other.token_to_id(text) == token_id for text, token_id in kept.items()) else None

    def detokenizer(self) -> Detokenizer:
        """See `Tokenizer`."""
        return (
            WindowDetokenizer(self._tokenizer) if self._rule is None else BytesDetokenizer(self.token_bytes)
        )

    def token_text(self, token_id: int) -> str:
        """See `Tokenizer`."""
        return self.spelling(token_id).text

    def spelling(self, token_id: int) -> TokenSpelling:
        """See `Tokenizer`. They are kept: the log probabilities of a prompt need thousands at a time."""
        known = self._spellings.get(token_id)
        if known is not None:
            return known
        if token_id not in self.special_ids and self._rule is not None:
            data = self.token_bytes(token_id)
            made = spell(data.decode(errors="replace"), data)
        else:
            text = str(self._tokenizer.decode([token_id], skip_special_tokens=False))
            made = TokenSpelling(text, b"" if token_id in self.special_ids else None)
        self._spellings[token_id] = made
        return made

    def decode(self, token_ids: list[int]) -> str:
        """See `Tokenizer`."""
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=False)
        return text

    def token_id(self, name: str) -> int | None:
        """Return the id of a token by its name in the tokenizer's file; None if there is no such token."""
        found: int | None = self._tokenizer.token_to_id(name) if name else None
        beyond = found is not None and self._num_rows is not None and found >= self._num_rows
        return None if beyond else found

    def vocabulary(self) -> dict[str, int]:
        """See `Tokenizer`."""
        names: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        if self._num_rows is None:
            return names
        return {name: token_id for name, token_id in names.items() if token_id < self._num_rows}

    def token_bytes(self, token_id: int) -> bytes:
        """See `Tokenizer`."""
        known = self._bytes.get(token_id)
        if known is not None:
            return known
        token: str | None = self._tokenizer.id_to_token(token_id)
        if token is None or token_id in self.special_ids or self._rule is None:
            return b""
        data = self._bytes[token_id] = self._rule(token)
        return data


def _description(tokenizer: HfTokenizer) -> dict[str, Any]:
    """Return what the tokenizer's file would say, without the merges, which can be a hundred MiB of text."""
    parts = {name: getattr(tokenizer, name) for name in ("normalizer", "pre_tokenizer", "decoder")}
    model, added = tokenizer.model, tokenizer.get_added_tokens_decoder().values()
    spec: dict[str, Any] = {name: part and json.loads(part.__getstate__()) for name, part in parts.items()}
    if isinstance(model, models.Unigram):
        spec["model"] = json.loads(model.__getstate__())
    else:
        spec["model"] = {
            "type": type(model).__name__,
            "byte_fallback": getattr(model, "byte_fallback", False),
            "vocab": tokenizer.get_vocab(with_added_tokens=False),
        }
    spec["added_tokens"] = [
        {"content": token.content, "lstrip": token.lstrip, "rstrip": token.rstrip} for token in added
    ]
    return spec
