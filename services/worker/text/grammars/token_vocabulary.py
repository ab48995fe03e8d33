"""A model's vocabulary as llguidance needs it: the bytes of each token, and which tokens end an answer."""

from collections.abc import Set

from llguidance import LLTokenizer

from services.worker.text.tokenizer import Tokenizer
from shared.errors import InvalidRequest

_MARK = "\n"  # keeps a tokenizer from putting a space before the text


class TokenVocabulary:
    """A vocabulary for grammars. Making it takes 0.2 s for 49,152 tokens, so it is made once. Thread-safe.

    Attributes:
        vocab_size: Tokens of the model.
        ends: The end-of-sequence tokens.
        end_mask: A mask that has only these.
        text_mask: A mask that has all other tokens that the tokenizer knows.
        library: The same vocabulary, made for llguidance.

    Args:
        tokenizer: Of the model.
        eos_ids: Tokens that end an answer.
        vocab_size: Tokens of the model, which may be more than the tokenizer has, or fewer.

    Raises:
        InvalidRequest: No bytes are known of the tokenizer's tokens, or no token ends an answer.
    """

    def __init__(self, tokenizer: Tokenizer, eos_ids: Set[int], vocab_size: int) -> None:
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
        wrapper = _Wrapper(tokenizer, ends, vocab_size)
        self.library = LLTokenizer(wrapper, n_vocab=vocab_size, eos_token=ends)  # type: ignore[arg-type]
        wrapper.library = self.library

    def tokens_of(self, data: bytes) -> list[int]:
        """Returns tokens with these bytes, which need not be whole characters."""
        return self.library.tokenize_bytes(data)


def _without(known: int, mask: bytes) -> bytes:
    """Returns a mask of the first `known` tokens that are not in another mask."""
    bits = ((1 << known) - 1) & ~int.from_bytes(mask, "little")
    return bits.to_bytes(len(mask), "little")


class _Wrapper:
    """What llguidance asks of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, ends: list[int], vocab_size: int) -> None:
        special = {i for i in tokenizer.special_ids if i < vocab_size} | set(ends)
        known = min(vocab_size, tokenizer.vocab_size)
        self.eos_token_id = ends[0]
        self.special_token_ids = sorted(special)
        self.tokens = [
            tokenizer.token_text(i).encode() if i in special else tokenizer.token_bytes(i)
            for i in range(known)
        ] + [b""] * (vocab_size - known)
        self.library: LLTokenizer | None = None
        self._tokenizer = tokenizer

    def __call__(self, text: bytes | str) -> list[int]:
        """Returns the tokens of a text, such that their bytes are those of the text."""
        if isinstance(text, bytes):
            text = text.decode()
        data = text.encode()
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        if self._bytes(ids) == data:
            return ids
        ids = self._tokenizer.encode(_MARK + text, add_special_tokens=False)
        for cut in range(1, len(ids)):
            if self._bytes(ids[cut:]) == data:
                return ids[cut:]
        return self.library.greedy_tokenize(text) if self.library is not None else []

    def _bytes(self, ids: list[int]) -> bytes:
        tokens = self.tokens
        return b"".join(tokens[i] if i < len(tokens) else b"\xff" for i in ids)
