"""An engine whose next token is a hash of all tokens so far, computed through the block tables.

Each KV slot holds the hash of all tokens up to its position, computed from the preceding slot in the block
table. A wrong block, or one shared or reused too early, therefore gives a wrong token, as in a model. With a
pool of sliding blocks, every token checks that these hold the hashes of all positions in its window.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.blocks.sliding_blocks import SlidingBlocks
from services.worker.domain.scheduling.sequence_queues import SchedulerLimits
from services.worker.rank_protocol.plan import (
    BLOCK_SIZE,
    NewSequence,
    Sampled,
    ScheduledChunk,
    StepPlan,
    StepResult,
)
from services.worker.rank_protocol.sliding_pool import chunk_blocks, least_blocks

VOCAB = 50
EOS = 0
_MASK = 2**61 - 1


def mix(state: int, token_id: int) -> int:
    """The state after one more token."""
    return (state * 6364136223846793005 + token_id * 1442695040888963407 + 1) % _MASK


def allowed_by(mask: bytes) -> list[int]:
    """The tokens that a mask allows; all of them if it is empty."""
    return [i for i in range(VOCAB) if not mask or (i < 8 * len(mask) and mask[i // 8] >> i % 8 & 1)]


def sample(state: int, choice: int, mask: bytes = b"") -> Sampled:
    """The next token for a state, one that the mask allows; some states give an error instead."""
    drawn = mix(state, 1000 + choice) >> 7
    if drawn % 331 == 0:
        return Sampled(seq_id=0, token_id=0, error="no number")
    allowed = allowed_by(mask)
    return Sampled(seq_id=0, token_id=allowed[drawn % len(allowed)])


def alone(prompt: list[int], max_tokens: int, choice: int) -> tuple[list[int], str]:
    """The expected output of a sequence and its finish reason: `stop`, `length` or `error`."""
    state = 0
    for token_id in prompt:
        state = mix(state, token_id)
    output: list[int] = []
    while len(output) < max_tokens:
        one = sample(state, choice)
        if one.error:
            return output, "error"
        output.append(one.token_id)
        if one.token_id == EOS:
            return output, "stop"
        state = mix(state, one.token_id)
    return output, "length"


@dataclass
class _Known:
    new: NewSequence
    tokens: list[int]
    table: list[int] = field(default_factory=list)
    sliding: list[int] = field(default_factory=list)
    states: list[int] = field(default_factory=list)


class HashEngine:
    """Computes plans immediately.

    Args:
        num_blocks: Blocks.
        num_sliding: Sliding blocks; 0: there is no pool of them.
        window: Positions that a token sees in these, itself included.

    Attributes:
        num_computed: Number of computed tokens, of prompts and outputs.
        store: Copied blocks by name; tests may change it.
        masks: Of steps with masked chunks, by step; they are to be here before the step is computed.
    """

    def __init__(self, num_blocks: int, num_sliding: int = 0, window: int = 0) -> None:
        self.blocks = range(num_blocks)
        self._window = window
        self._sliding: list[int | None] = [None] * (num_sliding * BLOCK_SIZE)
        self._slots: list[int | None] = [None] * (num_blocks * BLOCK_SIZE)
        self._known: dict[int, _Known] = {}
        self.num_computed = 0
        self.store: dict[bytes, list[int | None]] = {}
        self.masks: dict[int, list[bytes]] = {}

    @property
    def num_known(self) -> int:
        """Number of sequences that are not released."""
        return len(self._known)

    def compute(self, plan: StepPlan) -> StepResult:
        """Computes one step. Its chunks do not see what the other chunks of the step write."""
        for copy in plan.store:
            content = self._slots[copy.block * BLOCK_SIZE : (copy.block + 1) * BLOCK_SIZE]
            if self._window:
                content = content + self._sliding[copy.sliding * BLOCK_SIZE : (copy.sliding + 1) * BLOCK_SIZE]
            self.store[copy.name] = content
            assert None not in self.store[copy.name], "a block that was never filled"
        for seq_id in plan.release:
            del self._known[seq_id]
        for slots, ranges in ((self._slots, plan.vacate), (self._sliding, plan.vacate_sliding)):
            for first, end in ranges:
                slots[first * BLOCK_SIZE : end * BLOCK_SIZE] = [None] * ((end - first) * BLOCK_SIZE)
        for new in plan.admit:
            self._known[new.seq_id] = _Known(new, new.token_ids.copy())
        before, sliding_before = self._slots.copy(), self._sliding.copy()
        sampled, masks = [], iter(self.masks.pop(plan.step_id, []))
        for piece in plan.chunks:
            known = self._known[piece.seq_id]
            if piece.drafts:
                sampled += self._check_drafts(piece, known, before)
                continue
            state = self._extend(piece, known, before)
            if self._window:
                self._slide(piece, known, sliding_before)
            if piece.sample:
                assert piece.start + piece.num_tokens == len(known.tokens)
                one = sample(state, known.new.choice, next(masks) if piece.masked else b"")
                known.tokens.append(one.token_id)
                sampled.append(Sampled(seq_id=piece.seq_id, token_id=one.token_id, error=one.error))
        return StepResult(step_id=plan.step_id, sampled=sampled)

    def fetch(self, names: list[bytes], blocks: list[int], sliding: Sequence[int] = ()) -> int:
        """Reads blocks from the store until one is missing; returns the number read."""
        for count, (name, block) in enumerate(zip(names, blocks, strict=True)):
            content = self.store.get(name)
            # a block that is not fetched may be partly overwritten
            both = content or [7] * (2 * BLOCK_SIZE)
            self._slots[block * BLOCK_SIZE : (block + 1) * BLOCK_SIZE] = both[:BLOCK_SIZE]
            if sliding and sliding[count] >= 0:
                at = sliding[count] * BLOCK_SIZE
                self._sliding[at : at + BLOCK_SIZE] = both[BLOCK_SIZE : 2 * BLOCK_SIZE]
            if content is None:
                return count
        return len(names)

    def _check_drafts(self, piece: ScheduledChunk, known: _Known, before: list[int | None]) -> list[Sampled]:
        """Samples after each draft; the slots of wrong ones keep what was computed with them."""
        self._extend(piece, known, before)
        first, sampled = piece.start + piece.num_tokens - piece.drafts, list[Sampled]()
        for position in range(first, first + piece.drafts + 1):
            state = self._slots[self._slot(known, position - 1)]
            assert state is not None
            one = sample(state, known.new.choice)
            sampled.append(Sampled(seq_id=piece.seq_id, token_id=one.token_id, error=one.error))
            if one.error or known.tokens[position : position + 1] != [one.token_id]:
                known.tokens[position:] = [one.token_id]
                break
        return sampled

    def _extend(self, piece: ScheduledChunk, known: _Known, before: list[int | None]) -> int:
        known.table += piece.new_blocks
        end = piece.start + piece.num_tokens
        if piece.rewrite:
            del known.tokens[piece.start :]
        if not piece.follow:
            known.tokens += piece.token_ids[max(0, len(known.tokens) - piece.start) :]  # forced by a grammar
        assert end <= len(known.tokens)
        if not piece.follow:
            assert piece.token_ids == known.tokens[piece.start : end]
        state: int | None = before[self._slot(known, piece.start - 1)] if piece.start else 0
        for position in range(piece.start, end):
            assert state is not None, "nothing was ever computed there"
            state = mix(state, known.tokens[position])
            self._slots[self._slot(known, position)] = state
        self.num_computed += end - piece.start
        assert state is not None
        return state

    def _slide(self, piece: ScheduledChunk, known: _Known, before: list[int | None]) -> None:
        """Writes the hashes of a chunk to its sliding blocks, and checks those in each token's window."""
        if piece.sliding_blocks:
            missing = piece.sliding_first - len(known.sliding)
            assert missing >= 0, "sliding blocks that the ranks have"
            assert not (known.sliding and missing), "a gap between sliding blocks"
            known.sliding += [-1] * missing + piece.sliding_blocks
        while len(known.states) < len(known.tokens):
            known.states.append(mix(known.states[-1] if known.states else 0, known.tokens[len(known.states)]))

        def slot(position: int) -> int:
            block = known.sliding[position // BLOCK_SIZE]
            assert block >= 0, "a place of which the ranks were not told"
            return block * BLOCK_SIZE + position % BLOCK_SIZE

        for position in range(piece.start, piece.start + piece.num_tokens):
            self._sliding[slot(position)] = known.states[position]
            for seen in range(max(0, position + 1 - self._window), position):
                found = (before if seen < piece.start else self._sliding)[slot(seen)]
                assert found == known.states[seen], "a sliding block with other content"

    @staticmethod
    def _slot(known: _Known, position: int) -> int:
        return known.table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE


def with_window(
    num_blocks: int, limits: SchedulerLimits, window: int, region: int = 1
) -> tuple[BlockManager, HashEngine]:
    """Blocks and the engine that has them; without a window all layers share the blocks."""
    if not window:
        return BlockManager(num_blocks, region=region), HashEngine(num_blocks)
    count = least_blocks(window, limits.token_budget, limits.max_running)
    sliding = SlidingBlocks(count, window, chunk_blocks(limits.token_budget, limits.max_running), region)
    return BlockManager(num_blocks, sliding, region), HashEngine(num_blocks, count, window)
