"""Who waited for which rank in the collectives of each step. Pure.

The ranks of a group enter their collectives in the same order, and none leaves one before the last one has
entered it. So the time of a rank in a collective is its wait for the last one, then the exchange.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cli.profile.rank_rows import RankRows, Rows, clock_of_collectives

SLOW_SHARE = 0.1  # of the steps' time that others wait for a rank, more than for any other, until it is slow


@dataclass(frozen=True, slots=True)
class CollectiveTimeline:
    """The collectives that all ranks of a group recorded, on the clock of the first one.

    Attributes:
        ranks: Their numbers.
        steps: The step of each collective; [n], ascending.
        ops: Index of its op in the first rank's list; [n].
        begins: When each rank entered it; [ranks, n].
        ends: When each rank left it; [ranks, n].
        step_ns: What these steps took on the first rank, all together.
    """

    ranks: list[int]
    steps: NDArray[np.int64]
    ops: NDArray[np.int64]
    begins: Rows
    ends: Rows
    step_ns: int

    @property
    def complete(self) -> Rows:
        """When the last rank had entered, within the times of each rank; [ranks, n]."""
        found: Rows = np.clip(self.begins.max(axis=0), self.begins, self.ends)
        return found

    def waited_for(self) -> tuple[NDArray[np.int64], Rows]:
        """Returns the steps, and how long in each the others waited for each rank, in ns; [steps, ranks]."""
        ids, index = np.unique(self.steps, return_inverse=True)
        waits = (self.complete - self.begins).sum(axis=0)  # the last one waits for none
        found = np.zeros((len(ids), len(self.ranks)), np.int64)
        np.add.at(found, (index, self.begins.argmax(axis=0)), waits)
        return ids, found

    def slowest(self) -> dict[int, int]:
        """Returns the rank of each step for which the others waited longest, by the step's id."""
        ids, waited = self.waited_for()
        return {int(step): self.ranks[int(row.argmax())] for step, row in zip(ids, waited, strict=True)}

    def verdict(self) -> str:
        """Returns which rank the others wait for, in a sentence."""
        ids, waited = self.waited_for()
        shares = waited.sum(axis=0) / (max(1, self.step_ns) * (len(self.ranks) - 1))
        order = np.argsort(-shares)
        first, next_one = int(order[0]), int(order[1])
        led = int((waited.argmax(axis=1) == first).sum())
        if shares[first] - shares[next_one] > SLOW_SHARE:
            return (
                f"rank {self.ranks[first]} is the slowest, in {led} of {len(ids)} steps; the others waited "
                f"{shares[first]:.1%} of the steps' time for it"
            )
        each = ", ".join(
            f"{share:.1%} for rank {rank}" for rank, share in zip(self.ranks, shares, strict=True)
        )
        return f"no rank is slow; of the time of {len(ids)} steps, the others waited {each}"


def collective_timeline(ranks: Sequence[RankRows]) -> CollectiveTimeline | None:
    """Returns the collectives of a group; None if there are no two ranks with the same ones."""
    if len(ranks) < 2:
        return None
    tables = [_on_clock_of(ranks[0], one) for one in ranks]
    counts = [dict(zip(*np.unique(table[:, 0], return_counts=True), strict=True)) for table in tables]
    # a rank whose buffer was full has a part of its last step
    common = [step for step, count in counts[0].items() if all(one.get(step) == count for one in counts)]
    tables = [table[np.isin(table[:, 0], common)] for table in tables]
    first = tables[0]
    if not len(first):
        return None
    phases = ranks[0].phases[np.isin(ranks[0].phases[:, 0], common)]
    return CollectiveTimeline(
        ranks=[one.rank.rank for one in ranks],
        steps=first[:, 0],
        ops=first[:, 3],
        begins=np.stack([table[:, 1] for table in tables]),
        ends=np.stack([table[:, 2] for table in tables]),
        step_ns=int((phases[:, -1] - phases[:, 1]).sum()),
    )


def _on_clock_of(first: RankRows, one: RankRows) -> Rows:
    """The collectives of a rank; of another host, on the clock that they give, which is finer than pings."""
    found = one.collectives
    between = clock_of_collectives(first, one) if one.rank.host and one is not first else None
    if between is not None:
        found[:, 1:3] -= between[0].offset_ns
    return found
