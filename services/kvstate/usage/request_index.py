"""Decides what a record of the ledger adds: each request counts once, by its most complete record. Pure.

A request may have several records, of runs that went on elsewhere or were repeated, and copies of them. The
one of a run that was done counts, else the one with most tokens; the others add nothing, and one that is more
complete than those before it adds the difference, to the sum of the first one.
"""

from hashlib import blake2b
from typing import NamedTuple

from services.kvstate.usage.stored_sums import Counts, SumName
from shared.messages import UsageRecord

MAX_IDS = 1_000_000  # about 100 MB; the ids of 30 minutes at 500 requests per second
_PARTS = 20


class Added(NamedTuple):
    """What a record adds, and to which sum.

    Attributes:
        before: The sum that it would belong to if its tenant were not erased; None: it is not.
    """

    name: SumName
    counts: Counts
    before: SumName | None = None


class _Known(NamedTuple):
    rank: tuple[int, ...]
    added: Added


class RequestIndex:
    """The requests of the last records.

    What it returns depends on the records before and their order only, so two readers of a ledger agree.

    Args:
        max_ids: How many requests it knows.
    """

    def __init__(self, max_ids: int = MAX_IDS) -> None:
        self._part = max(1, max_ids // _PARTS)
        self._parts: list[dict[int, _Known | None]] = [{}]  # the newest first; None: it was done

    @property
    def reach(self) -> int:
        """Records that have to be read to know what it would know."""
        return self._part * _PARTS

    def add(
        self, record: UsageRecord, name: SumName, counts: Counts, before: SumName | None = None
    ) -> Added | None:
        """Takes the next record; returns what it adds, None if nothing.

        Args:
            record: The record.
            name: Its sum, if it is the first of its request.
            counts: What it would add then.
            before: See `Added`; of the first record of its request, too.
        """
        key = _key(record)
        known: _Known | None = None
        for part in self._parts:
            if key in part:
                known = part[key]
                if known is None:
                    return None
                break
        rank = _rank(record)
        added = Added(name, counts, before)
        if known is not None:
            if rank <= known.rank:
                return None
            first = known.added
            change = tuple(new - old for new, old in zip(counts, first.counts, strict=True))
            self._put(
                key, _Known(rank, Added(first.name, counts, first.before)), done=record.outcome == "done"
            )
            return Added(first.name, change, first.before)
        self._put(key, _Known(rank, added), done=record.outcome == "done")
        return added

    def _put(self, key: int, known: _Known, *, done: bool) -> None:
        newest = self._parts[0]
        if len(newest) >= self._part:
            newest = {}
            self._parts.insert(0, newest)
            del self._parts[_PARTS + 1 :]
        newest[key] = None if done else known


def _key(record: UsageRecord) -> int:
    name = f"{record.tenant}/{record.request_id}".encode()
    return int.from_bytes(blake2b(name, digest_size=8).digest())


def _rank(record: UsageRecord) -> tuple[int, ...]:
    return (
        record.outcome == "done",
        record.completion_tokens,
        record.prompt_tokens + record.embedded_tokens,
        record.reasoning_tokens,
        -record.cached_tokens,
        record.compute_ms,
    )
