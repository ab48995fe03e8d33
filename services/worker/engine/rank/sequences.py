"""The state of sequences that a rank keeps between steps: their tokens and their block tables.

Applies the `release`, `admit` and `new_blocks` of plans, and the tokens that rank 0 sampled. A plan that
contradicts earlier ones is a bug of the leader and is refused.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from services.worker.rank_protocol.plan import BLOCK_SIZE, NewSequence, ScheduledChunk, StepPlan
from services.worker.rank_protocol.sliding_pool import PoolSizes

Ints = NDArray[np.int64]


class PlanError(Exception):
    """A plan contradicts earlier ones or the size of the engine."""


class GrowableArray:
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

    def truncate(self, size: int) -> None:
        """Drops the values after the first `size`."""
        self.size = size

    @property
    def view(self) -> Ints:
        """The values, without a copy; valid until the next `extend`."""
        return self._data[: self.size]


class SequenceState:
    """One sequence on one rank. `tokens` includes sampled ones that the leader has not received yet.

    Attributes:
        table: Its blocks, in the order of its positions.
        sliding: The same of the layers with a sliding window, where these have a pool of their own. Nothing
            reads the positions behind the window.
        end_ids: Tokens that end it.
        adapter: The slot of its adapter, or `NO_ADAPTER`.
        wants_rows: `prompt_rows` is not empty for some of its chunks.
        pooled: Sum of the hidden states so far, for its embedding, [hidden]; on rank 0 only.
        refusals: How many times tokens were removed from `tokens`.
    """

    def __init__(self, new: NewSequence) -> None:
        self.seq_id = new.seq_id
        self.prompt_len = new.prompt_len
        self.sampling = new.sampling
        self.choice = new.choice
        self.adapter = new.adapter
        ends = set(new.sampling.stop_token_ids).union(() if new.sampling.ignore_eos else new.eos_ids)
        self.end_ids: Ints = np.array(sorted(ends), np.int64)
        self.tokens = GrowableArray(new.token_ids)
        self.table = GrowableArray([])
        self.sliding = GrowableArray([])
        self.embedding = new.embedding
        self.pooled: NDArray[np.float64] | None = None
        self.refusals = 0
        self._scored = new.scored
        self.wants_rows = new.embedding is not None or 0 <= new.scored < new.prompt_len

    def prompt_rows(self, start: int, count: int) -> range:
        """Positions of a chunk whose rows `PromptOutputs` takes.

        Args:
            start: Position of the chunk's first token.
        """
        end = start + count
        if self.embedding is not None:
            mean = self.embedding.pooling == "mean"
            return range(start if mean else max(start, self.prompt_len - 1), end)
        if self._scored < 0:
            return range(0)
        # the row of a token scores the one after it
        return range(max(start, self._scored - 1), min(end, self.prompt_len - 1))

    def samples(self, part: ScheduledChunk) -> bool:
        """Whether a token is sampled after a chunk."""
        return part.sample and self.embedding is None

    def extend(self, part: ScheduledChunk, sizes: PoolSizes) -> None:
        """Appends the blocks of a chunk, and those of its tokens that are not known here.

        Raises:
            PlanError: The chunk has no tokens or others than were sampled, leaves a gap, needs more blocks
                than it has, or names a block that does not exist.
        """
        if part.new_blocks:
            self._check_blocks(part.new_blocks, sizes.num_blocks)
            self.table.extend(part.new_blocks)
        if part.sliding_blocks:
            self._check_blocks(part.sliding_blocks, sizes.num_sliding)
            skipped = part.sliding_first - self.sliding.size
            if skipped < 0 or (skipped and self.sliding.size):
                raise PlanError(f"sequence {self.seq_id}: sliding blocks do not follow those before them")
            self.sliding.extend([0] * skipped + part.sliding_blocks)
        if part.rewrite and part.start < self.tokens.size:
            self.tokens.truncate(part.start)
            self.refusals += 1
        known, end = self.tokens.size, part.start + part.num_tokens
        if bool(part.token_ids) == part.follow or not 0 <= part.start <= known:
            raise PlanError(f"sequence {self.seq_id}: no slice of {known} tokens at {part.start}")
        if part.follow and part.start != known - 1:
            raise PlanError(
                f"sequence {self.seq_id}: token {part.start} is not the one sampled last of {known}"
            )
        if end > self.table.size * BLOCK_SIZE:
            raise PlanError(f"sequence {self.seq_id}: {self.table.size} blocks cannot hold {end} tokens")
        if sizes.num_sliding and end > self.sliding.size * BLOCK_SIZE:
            raise PlanError(f"sequence {self.seq_id}: {self.sliding.size} sliding blocks for {end} tokens")
        if (
            not part.follow
            and self.tokens.view[part.start : end].tolist() != part.token_ids[: known - part.start]
        ):
            raise PlanError(f"sequence {self.seq_id}: other tokens at {part.start} than before")
        if end > known:
            self.tokens.extend(part.token_ids[known - part.start :])

    def _check_blocks(self, blocks: list[int], count: int) -> None:
        if not 0 <= min(blocks) <= max(blocks) < count:
            raise PlanError(f"sequence {self.seq_id}: a block outside 0..{count - 1}")

    def append_sampled(self, position: int, token_id: int) -> None:
        """Appends the token that was sampled for a position; does nothing if the position has one."""
        if position == self.tokens.size:
            self.tokens.extend([token_id])

    def settle_drafts(self, part: ScheduledChunk, sampled: Sequence[int]) -> int:
        """Keeps the drafts of a chunk that were sampled, and the first token that differs from its draft.

        Args:
            part: The chunk, whose drafts are the newest of `tokens`.
            sampled: The tokens sampled before, between and after the drafts.

        Returns:
            How many of the sampled tokens are the sequence's.
        """
        drafts = part.token_ids[part.num_tokens - part.drafts :]
        right = 0
        while right < part.drafts and drafts[right] == sampled[right]:
            right += 1
        if right < part.drafts:
            self.tokens.truncate(part.start + part.num_tokens - part.drafts + right)
            self.refusals += 1
        self.tokens.extend([sampled[right]])
        return right + 1


class Sequences:
    """All sequences that a rank knows, by seq_id; `sizes` are those of its cache."""

    def __init__(self, sizes: PoolSizes) -> None:
        self.sizes = sizes
        self._known: dict[int, SequenceState] = {}

    def apply(self, plan: StepPlan) -> list[SequenceState]:
        """Applies a plan to the states.

        Returns:
            The states of its chunks, in order.

        Raises:
            PlanError: The plan contradicts earlier ones.
        """
        for seq_id in plan.release:
            # a sequence may be cancelled before a plan ever admitted it
            self._known.pop(seq_id, None)
        for new in plan.admit:
            if new.seq_id in self._known:
                raise PlanError(f"sequence {new.seq_id} was admitted twice")
            self._known[new.seq_id] = SequenceState(new)
        states = []
        for part in plan.chunks:
            state = self._known.get(part.seq_id)
            if state is None:
                raise PlanError(f"sequence {part.seq_id} is not known")
            state.extend(part, self.sizes)
            states.append(state)
        return states

    def __len__(self) -> int:
        return len(self._known)
