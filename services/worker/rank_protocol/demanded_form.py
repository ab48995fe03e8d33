"""The form that an answer must have, as an engine is told that follows it with a grammar engine of its own.

Ranks follow no grammars: they get masks (`StepMasks`). Guests take none, since they sample on their own.
"""

import msgspec

from shared.messages import StructuredOutput


class DemandedForm(msgspec.Struct, frozen=True, omit_defaults=True):
    """A form, for guests.

    Attributes:
        lark: The grammar of the whole answer in llguidance's form of Lark, as the leader checks it; empty: it
            cannot be said in one such text.
        structured: What the caller demands of the text, for guests that follow no Lark; None: the form is one
            of tool calls.
    """

    lark: str
    structured: StructuredOutput | None = None
