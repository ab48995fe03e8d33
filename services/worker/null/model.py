"""The model of a null engine without a model directory: byte tokens, a template that only names the roles."""

import codecs
from collections.abc import Set

from services.worker.domain.answers.choice_state import Detokenizer
from services.worker.domain.answers.token_spelling import TokenSpelling, spell
from services.worker.model_files.model import Model
from services.worker.text.chat_template import ChatTemplate

END = 256
CONTEXT_LENGTH = 8192  # tokens, of a null engine without a model directory
_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


class ByteTokenizer:
    """Tokens 0 to 255 are bytes; one special token is the end."""

    vocab_size = 257
    special_texts: frozenset[str] = frozenset()  # the special token has no text
    added_texts: frozenset[str] = frozenset()
    special_ids = frozenset([END])
    has_token_bytes = True

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the UTF-8 bytes of a text; there are no special tokens to add."""
        return list(text.encode())

    def without(self, texts: Set[str]) -> "ByteTokenizer":
        """Return itself: no text is a special token."""
        return self

    def least_tokens(self, text: str) -> int:
        """Return the number of characters: each has at least one byte."""
        return len(text)

    def detokenizer(self) -> Detokenizer:
        """Return a new detokenizer for one sequence."""
        return _ByteDetokenizer()

    def token_text(self, token_id: int) -> str:
        """Return one byte as text."""
        return "<|end|>" if token_id == END else bytes((token_id,)).decode(errors="replace")

    def spelling(self, token_id: int) -> TokenSpelling:
        """Return how one byte is shown."""
        return spell(self.token_text(token_id), self.token_bytes(token_id))

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of bytes; the end is written out."""
        data = b"".join(b"<|end|>" if token_id == END else bytes((token_id,)) for token_id in token_ids)
        return data.decode(errors="replace")

    def vocabulary(self) -> dict[str, int]:
        """Return each byte as a character of that number, and the end."""
        return {chr(byte): byte for byte in range(END)} | {"<|end|>": END}

    def token_bytes(self, token_id: int) -> bytes:
        """Return the byte of a token."""
        return bytes((token_id,)) if token_id < END else b""


class _ByteDetokenizer:
    __slots__ = ("_decode",)

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def feed(self, token_id: int) -> str:
        return self._decode(bytes((token_id,))) if token_id < END else ""

    def flush(self) -> str:
        return self._decode(b"", True)


def null_model(name: str, context_length: int) -> Model:
    """Make a model that needs no files."""
    return Model(
        name=name,
        context_length=context_length,
        eos_ids=frozenset([END]),
        tokenizer=ByteTokenizer(),
        template=ChatTemplate(_TEMPLATE, {}),
    )
