"""Shows the control tokens that mark parts of an answer as text; all others stay hidden.

`<tool_call>` is a token of its own in many vocabularies, and detokenizers leave special tokens out.
"""

from collections.abc import Iterable, Mapping, Set

from services.worker.domain.answers.choice_state import Detokenizer
from services.worker.text.tokenizer import Tokenizer


def marker_tokens(
    tokenizer: Tokenizer, texts: Iterable[str], control_texts: Set[str] | None = None
) -> dict[int, str]:
    """Returns the control tokens that these texts hold, by id.

    Args:
        texts: Fixed texts of a form.
        control_texts: Texts of the tokens that are searched; None: the special tokens.
    """
    fixed = tuple(texts)
    known = tokenizer.special_texts if control_texts is None else control_texts
    marks = [text for text in known if any(text in one for one in fixed)]
    encoded = ((text, tokenizer.encode(text, add_special_tokens=False)) for text in marks)
    return {ids[0]: text for text, ids in encoded if len(ids) == 1}


class MarkerDetokenizer:
    """A detokenizer that shows some special tokens.

    Args:
        inner: Makes text of all other tokens.
        shown: Texts of the tokens that are shown.
    """

    __slots__ = ("_inner", "_shown")

    def __init__(self, inner: Detokenizer, shown: Mapping[int, str]) -> None:
        self._inner = inner
        self._shown = shown

    def feed(self, token_id: int) -> str:
        """See `Detokenizer`."""
        text = self._shown.get(token_id)
        return self._inner.feed(token_id) if text is None else self._inner.flush() + text

    def flush(self) -> str:
        """See `Detokenizer`."""
        return self._inner.flush()
