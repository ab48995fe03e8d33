"""What the leader knows of a model: everything but the weights, which the ranks read."""

import re
from dataclasses import dataclass
from pathlib import Path

from services.worker.text.chat_template import ChatTemplate
from services.worker.text.control_tokens import control_texts
from services.worker.text.end_tokens import written_texts
from services.worker.text.tokenizer import LibraryTokenizer, Tokenizer
from shared.errors import InvalidRequest
from shared.messages import SamplingDefaults
from shared.messages.base import NAME_PATTERN, NAME_RULE

MAX_POSITIONS = 2**30
_NOT_GIVEN = SamplingDefaults()


@dataclass(frozen=True, slots=True)
class Model:
    """A model as the leader needs it; without a template it completes text but does not chat.

    Attributes:
        tool_format: Name of the form in which it calls tools. Empty: that of its template.
        sampling: Its defaults of sampling: those of its files, until `with_sampling_defaults` has completed
            them.
        tenants: Only these may use it; empty: all may.
    """

    name: str
    context_length: int
    eos_ids: frozenset[int]
    tokenizer: Tokenizer
    template: ChatTemplate | None
    tool_format: str = ""
    sampling: SamplingDefaults = _NOT_GIVEN
    tenants: tuple[str, ...] = ()

    @property
    def control_texts(self) -> frozenset[str]:
        """Texts of its control tokens, special or not; no text of a request is one of these tokens."""
        return control_texts(self.tokenizer, self.template.sources if self.template is not None else "")

    @property
    def findings(self) -> list[str]:
        """What is unusual about its files, in sentences for a person."""
        found = [f"chat template: {finding}" for finding in self.template.findings] if self.template else []
        if self.template is None:
            found.append("there is no chat template: it completes texts and does not chat")
        if not self.eos_ids:
            found.append("no file names a token that ends an answer: answers end at `max_tokens`")
        return found


def within_embedding(
    tokenizer: LibraryTokenizer, template: ChatTemplate | None, num_rows: int, path: Path
) -> LibraryTokenizer:
    """Returns a tokenizer that makes no token beyond the embedding.

    Args:
        num_rows: Rows of the embedding; 0: not known.
        path: The file of the tokenizer, for refusals.

    Raises:
        InvalidRequest: Ordinary tokens are beyond it, or some that the chat template writes.
    """
    if not num_rows:
        return tokenizer
    try:
        within = tokenizer.within(num_rows)
    except ValueError as error:
        raise InvalidRequest(f"{path}: {error}", param="model") from error
    lost = tokenizer.added_ids.keys() - within.added_ids.keys()
    if template is not None and (written := sorted(written_texts(template, lost))):
        raise InvalidRequest(
            f"{path}: the chat template writes {written[0]!r}, which is token "
            f"{tokenizer.added_ids[written[0]]}, and the embedding has {num_rows} rows; use the "
            "tokenizer that belongs to these weights",
            param="model",
        )
    return within


def served_name(name: str, found: str) -> str:
    """Return the name callers ask for.

    Args:
        name: The name that was chosen; empty: none was.
        found: The name of the model's directory or file.

    Raises:
        InvalidRequest: It is no name that messages can carry.
    """
    served_as = name or found
    if not re.match(NAME_PATTERN, served_as):
        raise InvalidRequest(
            f"the model would be called {served_as!r}, and a name needs {NAME_RULE}; set RYZ_MODEL_NAME",
            param="model_name",
        )
    return served_as
