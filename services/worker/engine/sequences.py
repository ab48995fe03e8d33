"""What a rank remembers of a sequence between steps: its tokens and its block table.

Applies the `release`, `admit` and `new_blocks` of plans. It decides nothing; a plan that does not fit what
was planned before is a bug of the leader and is refused with its name.
"""

import numpy as np
from numpy.typing import NDArray

from services.worker.domain.plan import BLOCK_SIZE, NewSequence, Slice, StepPlan

Ints = NDArray[np.int64]


class PlanError(Exception):
    """A plan contradicts earlier ones or the size of the engine."""


class Growing:
    """An array of integers that grows at its end."""

    def __init__(self, values: list[int]) -> None:
        self._data: Ints = np.array(values, np.int64) if values else np.empty(16, np.int64)
        self.size = len(values)

    def extend(self, values: list[int]) -> None:
        """Appends the values."""
        end = self.size + len(values)
        if end > len(self._data):
            self._data = np.resize(self._data, max(end, 2 * self.size))
        self._data[self.size : end] = values
        self.size = end

    @property
    def view(self) -> Ints:
        """The values, without a copy; valid until the next `extend`."""
        return self._data[: self.size]


class SequenceState:
    """One sequence on one rank."""

    def __init__(self, new: NewSequence) -> None:
        self.seq_id = new.seq_id
        self.prompt_len = new.prompt_len
        self.sampling = new.sampling
        self.choice = new.choice
        self.tokens = Growing(new.token_ids)
        self.table = Growing([])

    def extend(self, part: Slice, num_blocks: int) -> None:
        """Takes what a slice adds: blocks, and tokens that were sampled since.

        Raises:
            PlanError: the slice has no tokens, leaves a gap, needs more blocks than it has, or names a
                block that does not exist.
        """
        if part.new_blocks:
            if not 0 <= min(part.new_blocks) <= max(part.new_blocks) < num_blocks:
                raise PlanError(f"sequence {self.seq_id}: a block outside 0..{num_blocks - 1}")
            self.table.extend(part.new_blocks)
        end = part.start + len(part.token_ids)
        if not part.token_ids or not 0 <= part.start <= self.tokens.size:
            raise PlanError(f"sequence {self.seq_id}: no slice of {self.tokens.size} tokens at {part.start}")
        if end > self.table.size * BLOCK_SIZE:
            raise PlanError(f"sequence {self.seq_id}: {self.table.size} blocks cannot hold {end} tokens")
        if end > self.tokens.size:
            self.tokens.extend(part.token_ids[self.tokens.size - part.start :])


class Sequences:
    """All sequences a rank knows, by their seq_id."""

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._known: dict[int, SequenceState] = {}

    def apply(self, plan: StepPlan) -> list[SequenceState]:
        """Brings the states up to the plan; returns those of its slices, in order. Raises `PlanError`."""
        for seq_id in plan.release:
            # a sequence may be cancelled before a plan ever admitted it
            self._known.pop(seq_id, None)
        for new in plan.admit:
            if new.seq_id in self._known:
                raise PlanError(f"sequence {new.seq_id} was admitted twice")
            self._known[new.seq_id] = SequenceState(new)
        states = []
        for part in plan.slices:
            state = self._known.get(part.seq_id)
            if state is None:
                raise PlanError(f"sequence {part.seq_id} is not known")
            state.extend(part, self._num_blocks)
            states.append(state)
        return states

    def __len__(self) -> int:
        return len(self._known)
