"""Decode steps recorded once and replayed: one launch per step instead of one per operator.

A recording has fixed addresses and shapes, so batches and their block tables are padded to powers of two;
each pair of sizes is recorded when it is first used. The caller runs prefills, and batches whose padding
would cost more than launches. A `GraphCapture` does the recording.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from services.worker.engine.plain.batch import AttentionMetadata, DecodeGroup, PlainBatch, ReadRange
from services.worker.engine.plain.model import Decoder
from services.worker.engine.plain.plain_cache import KVCache
from services.worker.engine.rank.sequences import Ints, SequenceState
from services.worker.rank_protocol.page_policy import PagePolicy
from services.worker.rank_protocol.plan import BLOCK_SIZE, ScheduledChunk

MAX_SEQUENCES = 256
MIN_BLOCKS = 16  # of a block table: 256 tokens, so that short contexts share a recording
MAX_KEYS = 2**18  # sequences x padded context: above, gathering keys takes longer than launching

Work = Callable[[], Tensor | None]


class GraphCapture(Protocol):
    """Records work on tensors that stay where they are."""

    def __call__(self, work: Work) -> tuple[Callable[[], object], Tensor | None]:
        """Records the work, which may be run any number of times meanwhile.

        Returns:
            A function that replays it, and the tensor (if any) that holds its result after each replay. The
            next replay of any recording of this capture overwrites the result.
        """
        ...


class CudaCapture:
    """`torch.cuda.CUDAGraph`s that share one pool of memory, since only one of them runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Work) -> tuple[Callable[[], object], Tensor | None]:
        """See `GraphCapture`."""
        current = torch.cuda.current_stream(self._device)
        aside = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        aside.wait_stream(current)
        with torch.cuda.stream(aside):
            for _ in range(
                2
            ):  # libraries allocate handles and workspaces at first use, which is not recordable
                work()
        current.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # NCCL's own thread queries events meanwhile
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = work()
        return graph.replay, result


@dataclass(frozen=True, slots=True)
class _Recording:
    """One recorded step.

    Attributes:
        inputs: Token ids, positions, slots and block tables of all rows, in one int64 tensor; then slots and
            tables of the sliding layers' blocks, where these have a pool of their own.
    """

    inputs: Tensor
    replay: Callable[[], object]
    logits: Tensor | None


class DecodeGraphs:
    """Recordings of a model's decode steps, by padded numbers of sequences and of blocks in a table."""

    def __init__(
        self, model: Decoder, cache: KVCache, capture: GraphCapture, pages: PagePolicy | None = None
    ) -> None:
        self._model = model
        self._cache = cache
        self._capture = capture
        self._read_range = ReadRange(frozenset(model.config.windows), pages)
        # then neither padded rows of a table nor their keys are read
        self._in_place = pages is None and all(
            layer.attends_in_place(own) for layer, own in zip(model.layers, cache.layers, strict=True)
        )
        self._most_blocks = -(-model.config.context_length // BLOCK_SIZE)
        self._recordings: dict[tuple[int, int], _Recording] = {}

    def can_replay(self, chunks: Sequence[ScheduledChunk]) -> bool:
        """Whether `forward` takes this step: decodes only, neither too many nor too long, some sampled."""
        if len(chunks) > MAX_SEQUENCES or not any(part.sample for part in chunks):
            return False
        if any(part.num_tokens > 1 for part in chunks):
            return False
        sequences, blocks = self._sizes(chunks)
        return self._in_place or sequences * blocks * BLOCK_SIZE <= MAX_KEYS

    def forward(self, chunks: Sequence[ScheduledChunk], states: Sequence[SequenceState]) -> Tensor | None:
        """As `Decoder.forward`, with logits in the order of the chunks, valid until the next call."""
        sizes = self._sizes(chunks)
        inputs = torch.from_numpy(self._fill(sizes, chunks, states))
        recording = self._recordings.get(sizes)
        if recording is None:
            recording = self._recordings[sizes] = self._record(sizes, inputs)
        else:
            recording.inputs.copy_(inputs)
        recording.replay()
        if recording.logits is None:
            return None
        if all(part.sample for part in chunks):
            return recording.logits[: len(chunks)]
        rows = [row for row, part in enumerate(chunks) if part.sample]
        return recording.logits[torch.tensor(rows, device=recording.logits.device)]

    def _sizes(self, chunks: Sequence[ScheduledChunk]) -> tuple[int, int]:
        longest = max(part.start for part in chunks) // BLOCK_SIZE + 1
        blocks = max(MIN_BLOCKS, _power(longest))
        if self._in_place and (blocks // MIN_BLOCKS).bit_length() % 2 == 0:
            blocks *= 2  # powers of four: half as many recordings
        return _power(len(chunks)), min(blocks, self._most_blocks)

    def _fill(
        self, sizes: tuple[int, int], chunks: Sequence[ScheduledChunk], states: Sequence[SequenceState]
    ) -> Ints:
        """The inputs of a recording. Padding rows are tokens at position 0 of the cache's spare block."""
        token_ids, positions = np.zeros((2, sizes[0]), np.int64)
        for row, (part, state) in enumerate(zip(chunks, states, strict=True)):
            token_ids[row], positions[row] = state.tokens.view[part.start], part.start
        inputs = [token_ids, positions]
        starts = [part.start for part in chunks]
        num_blocks, num_sliding = self._cache.sizes
        inputs += _fill_tables(sizes, starts, [state.table.view for state in states], num_blocks)
        if num_sliding:
            inputs += _fill_tables(sizes, starts, [state.sliding.view for state in states], num_sliding)
        return np.concatenate(inputs)

    def _record(self, sizes: tuple[int, int], inputs: Tensor) -> _Recording:
        own = inputs.to(self._model.placement.device, copy=True)

        def work() -> Tensor | None:
            return self._model.forward(padded_batch(own, sizes, self._read_range), self._cache)

        replay, logits = self._capture(work)
        return _Recording(own, replay, logits)


def _fill_tables(sizes: tuple[int, int], starts: list[int], found: list[Ints], spare: int) -> list[Ints]:
    """Slots and block tables of one pool, for sequences whose next tokens are at these positions."""
    slots, tables = np.full(sizes[0], spare * BLOCK_SIZE, np.int64), np.full(sizes, spare, np.int64)
    for row, (at, table) in enumerate(zip(starts, found, strict=True)):
        used = at // BLOCK_SIZE + 1
        slots[row] = table[used - 1] * BLOCK_SIZE + at % BLOCK_SIZE
        tables[row, :used] = table[:used]
    return [slots, tables.reshape(-1)]


def padded_batch(inputs: Tensor, sizes: tuple[int, int], read_range: ReadRange) -> PlainBatch:
    """The batch of a recording, made of its inputs by operators only, so that a replay makes it again.

    Args:
        inputs: As `_Recording` has them.
        sizes: Sequences, and blocks in a table.
    """
    sequences, blocks = sizes
    token_ids, positions = inputs[: 2 * sequences].view(2, sequences)
    # of each pool [sequences, 1 + blocks] numbers: slots, then tables
    pools = inputs[2 * sequences :].view(-1, sequences * (1 + blocks))
    slots = pools[:, :sequences]
    tables = pools[:, sequences:].view(-1, sequences, blocks)
    return PlainBatch(
        token_ids=token_ids,
        positions=positions,
        slots=slots[0],
        sample_rows=torch.arange(sequences, device=inputs.device),
        attention_metadata={
            window: AttentionMetadata(
                [_decodes(positions, tables[-1 if window else 0], window, read_range.pages_of(window))], []
            )
            for window in read_range.windows
        },
        sliding_slots=slots[1] if len(slots) > 1 else None,
    )


def _decodes(positions: Tensor, tables: Tensor, window: int, pages: PagePolicy | None) -> DecodeGroup:
    sequences, blocks = tables.shape
    at = positions.unsqueeze(1)
    first = torch.zeros_like(at)
    if window and window // BLOCK_SIZE + 2 < blocks:
        # a window spans so many blocks at most; which ones depends on the position
        blocks = window // BLOCK_SIZE + 2
        first = (at + 1 - window).clamp(min=0) // BLOCK_SIZE
        columns = first + torch.arange(blocks, device=tables.device)
        tables = tables.gather(1, columns.clamp(max=tables.shape[1] - 1))
    length = blocks * BLOCK_SIZE
    keys = first * BLOCK_SIZE + torch.arange(length, device=tables.device)
    seen = keys <= at
    if window:
        seen &= keys > at - window
    if pages is not None:
        seen &= pages.reads(at // BLOCK_SIZE, keys // BLOCK_SIZE)
    return DecodeGroup(
        begin=0,
        end=sequences,
        length=length,
        blocks=tables.reshape(-1),
        mask=seen.view(sequences, 1, 1, length),
        newest=(at - first * BLOCK_SIZE).view(-1),
        window=window if pages is None else None,
    )


def _power(count: int) -> int:
    """The next power of two."""
    return 1 << (count - 1).bit_length()
