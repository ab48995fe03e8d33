"""What the leader knows of a model: everything but the weights, which the ranks read."""

import re
from dataclasses import dataclass

from services.worker.text.chat_template import ChatTemplate
from services.worker.text.control_tokens import control_texts
from services.worker.text.tokenizer import Tokenizer
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
    """

    name: str
    context_length: int
    eos_ids: frozenset[int]
    tokenizer: Tokenizer
    template: ChatTemplate | None
    tool_format: str = ""
    sampling: SamplingDefaults = _NOT_GIVEN

    @property
    def control_texts(self) -> frozenset[str]:
        """Texts of its control tokens, special or not; no text of a request is one of these tokens."""
        return control_texts(self.tokenizer, self.template.source if self.template is not None else "")


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
