"""An engine whose next token is a hash of all tokens so far, computed through the block tables.

Each KV slot holds the hash of all tokens up to its position, computed from the preceding slot in the block
table. A wrong block, or one shared or reused too early, therefore gives a wrong token, as in a model.
"""

from dataclasses import dataclass, field

from services.worker.rank_protocol.plan import (
    BLOCK_SIZE,
    NewSequence,
    Sampled,
    ScheduledChunk,
    StepPlan,
    StepResult,
)

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


class HashEngine:
    """Computes plans immediately.

    Attributes:
        num_computed: Number of computed tokens, of prompts and outputs.
        store: Copied blocks by name; tests may change it.
        masks: Of steps with masked chunks, by step; they are to be here before the step is computed.
    """

    def __init__(self, num_blocks: int) -> None:
        self.blocks = range(num_blocks)
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
            self.store[copy.name] = self._slots[copy.block * BLOCK_SIZE : (copy.block + 1) * BLOCK_SIZE]
            assert None not in self.store[copy.name], "a block that was never filled"
        for seq_id in plan.release:
            del self._known[seq_id]
        for new in plan.admit:
            self._known[new.seq_id] = _Known(new, new.token_ids.copy())
        before = self._slots.copy()
        sampled, masks = [], iter(self.masks.pop(plan.step_id, []))
        for piece in plan.slices:
            known = self._known[piece.seq_id]
            state = self._extend(piece, known, before)
            if piece.sample:
                assert piece.start + piece.num_tokens == len(known.tokens)
                one = sample(state, known.new.choice, next(masks) if piece.masked else b"")
                known.tokens.append(one.token_id)
                sampled.append(Sampled(seq_id=piece.seq_id, token_id=one.token_id, error=one.error))
        return StepResult(step_id=plan.step_id, sampled=sampled)

    def fetch(self, names: list[bytes], blocks: list[int]) -> int:
        """Reads blocks from the store until one is missing; returns the number read."""
        for count, (name, block) in enumerate(zip(names, blocks, strict=True)):
            content = self.store.get(name)
            # a block that is not fetched may be partly overwritten
            self._slots[block * BLOCK_SIZE : (block + 1) * BLOCK_SIZE] = content or [7] * BLOCK_SIZE
            if content is None:
                return count
        return len(names)

    def _extend(self, piece: ScheduledChunk, known: _Known, before: list[int | None]) -> int:
        known.table += piece.new_blocks
        end = piece.start + piece.num_tokens
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

    @staticmethod
    def _slot(known: _Known, position: int) -> int:
        return known.table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
