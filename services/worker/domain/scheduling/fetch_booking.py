"""Books fetches that have ended, and sequences whose fetch was given up."""

from services.worker.domain.blocks.fetches import BlockFetch
from services.worker.domain.blocks.write_behind import WriteBehind
from services.worker.domain.scheduling.sequence_queues import SequenceQueues


def book_fetch(queues: SequenceQueues, write_behind: WriteBehind, fetch_id: int, count: int) -> None:
    """Books a fetch that brought its first `count` blocks; its sequence computes the rest."""
    fetch = queues.fetched(fetch_id, count)
    if fetch is None:
        return
    write_behind.found(fetch.names[:count])
    write_behind.forget(fetch.names[count:])
    if fetch.sequence is not None and count < len(fetch.names) and queues.blocks.sliding is not None:
        _compute_anew(queues, fetch)  # the window before the first missing block was not fetched


def give_up_fetch(queues: SequenceQueues, fetch_id: int) -> None:
    """Gives up a fetch that takes too long: its sequence computes everything, in other blocks."""
    fetch = queues.fetches.get(fetch_id)
    if fetch is not None:
        _compute_anew(queues, fetch)


def _compute_anew(queues: SequenceQueues, fetch: BlockFetch) -> None:
    """Lets the sequence that waits for a fetch begin again, without asking the store."""
    if fetch.sequence is not None:
        fetch.sequence.stored = -1
        queues.preempt(fetch.sequence)
