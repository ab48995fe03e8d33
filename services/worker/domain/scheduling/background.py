"""Sequences of the lowest priority, which run in the room that others leave, such as requests of batches.

While the prompt of another request is computed they stand still, so that its first token does not wait for
them; and their own prompts are computed in small chunks, since a request may come during each step.
"""

from collections.abc import Sequence as Many

from services.worker.domain.scheduling.sequence import Sequence
from shared.messages.base import BACKGROUND_PRIORITY


def has_background(running: Many[Sequence]) -> bool:
    """Returns whether such a sequence runs; `running` is in order, so they come last."""
    return bool(running) and running[-1].priority <= BACKGROUND_PRIORITY


def is_background(sequence: Sequence) -> bool:
    """Returns whether a sequence gives way to all others."""
    return sequence.priority <= BACKGROUND_PRIORITY


def others_begin(running: Many[Sequence]) -> bool:
    """Returns whether the prompt of another request is computed now; its next chunk is in this step."""
    return any(
        not is_background(one) and one.remaining > 1 and not one.fetching and not one.has_run
        for one in running
    )
