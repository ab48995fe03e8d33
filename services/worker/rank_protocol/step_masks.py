"""The masks of a step: which tokens its grammars allow. They follow the plan, to rank 0 only.

A step may be planned before the tokens of the step before it are known, and their grammars cannot say earlier
what may follow. So the plan says which chunks are masked, and the masks come in a message of their own while
the step is computed. Rank 0 waits for it just before it samples.
"""

import msgspec

ANY_TOKEN = b""  # the mask of a row that may have every token
NO_TOKEN = b"\0"


class StepMasks(msgspec.Struct, frozen=True, kw_only=True):
    """The masks of one step.

    Attributes:
        step_id: The step; its plan was sent before.
        masks: One for each chunk of the plan that is `masked`, in order. Bit `i % 8` of byte `i // 8` is set
            if token `i` may come; tokens beyond the end of a mask may not. `ANY_TOKEN` allows all.
    """

    step_id: int
    masks: list[bytes]


def mask_of(token_id: int) -> bytes:
    """Returns the mask that allows one token only."""
    return bytes(token_id // 8) + bytes((1 << token_id % 8,))
