"""What the engine of the draft model has computed: the blocks of each drafted sequence, and its tokens there.

That engine gets the tokens of the target model, and computes guesses behind them. When the target has
decided, the guesses that were right stay computed, and the others are overwritten. Pure; the caller sends the
chunks in the order in which they were made.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from services.worker.rank_protocol.plan import BLOCK_SIZE, ScheduledChunk


@dataclass(slots=True)
class _Held:
    """One sequence in the draft engine.

    Attributes:
        draft_id: Its seq_id there, which is never used again.
        blocks: In the order of its positions.
        num_sent: How many of the blocks were sent to the engine.
        sure: So many first tokens there are those of the target.
        guesses: Tokens that were sampled there for the positions after them.
        computed: The KV of so many first tokens and guesses is in the blocks.
        stale: The engine knows other tokens from `sure` on.
    """

    draft_id: int
    blocks: list[int] = field(default_factory=list)
    num_sent: int = 0
    sure: int = 0
    guesses: list[int] = field(default_factory=list)
    computed: int = 0
    stale: bool = False


class DraftCache:
    """The KV blocks of one start of the draft engine.

    Args:
        context_length: Tokens that a sequence may have there.
        vocab_size: Its token ids are below it.
    """

    def __init__(self, num_blocks: int, context_length: int, vocab_size: int) -> None:
        self._num_blocks = num_blocks
        self._context_length = context_length
        self._vocab_size = vocab_size
        self._free = list(range(num_blocks))
        self._held: dict[int, _Held] = {}
        self._released: list[int] = []
        self._last_id = 0

    @property
    def num_free(self) -> int:
        """Free blocks."""
        return len(self._free)

    def __contains__(self, key: int) -> bool:
        return key in self._held

    def open(self, key: int, num_tokens: int) -> int | None:
        """Takes in a sequence, with blocks for the tokens that it has and one more.

        Returns:
            Its seq_id in the draft engine; None if it does not fit.
        """
        held = _Held(self._last_id + 1)
        if not self._grow(held, num_tokens + 1):
            return None
        self._last_id += 1
        self._held[key] = held
        return held.draft_id

    def drop(self, key: int) -> None:
        """Gives up a sequence, if it is held; its blocks are free at once, as `take_released` goes first."""
        held = self._held.pop(key, None)
        if held is not None:
            self._free += held.blocks
            self._released.append(held.draft_id)

    def keep(self, keys: Iterable[int]) -> None:
        """Gives up all other sequences."""
        for key in self._held.keys() - set(keys):
            self.drop(key)

    def take_released(self) -> list[int]:
        """Returns the seq_ids that the next plan releases."""
        released, self._released = self._released, []
        return released

    def settle(self, key: int, tokens: Sequence[int]) -> int:
        """Compares the guesses with what the target has; returns how many tokens are not computed.

        Args:
            key: A sequence that is held.
            tokens: All its tokens; those of the call before, and new ones.
        """
        held = self._held[key]
        right, known = 0, held.guesses
        new = tokens[held.sure : held.sure + len(known)]
        while right < len(new) and new[right] == known[right]:
            right += 1
        held.sure += right
        held.stale = held.stale or right < len(known)
        held.guesses = []
        # the newest token is computed once more if it was a guess, since the next one is sampled after it
        held.computed = min(held.computed, held.sure, len(tokens) - 1)
        return self.num_missing(key, tokens)

    def num_missing(self, key: int, tokens: Sequence[int]) -> int:
        """Returns how many tokens of a sequence that is settled are not computed."""
        return len(tokens) - self._held[key].computed

    def extend(self, key: int, tokens: Sequence[int], count: int, *, sample: bool) -> ScheduledChunk | None:
        """Returns a chunk of the next tokens that are not computed; None if it does not fit.

        Args:
            key: A sequence that is settled.
            tokens: All its tokens.
            count: How many of them, at least 1.
            sample: Sample the token after them.
        """
        held = self._held[key]
        start = held.computed
        end = start + count
        token_ids = list(tokens[start:end])
        if max(token_ids) >= self._vocab_size or not self._grow(held, end):
            return None
        chunk = ScheduledChunk(
            seq_id=held.draft_id,
            start=start,
            token_ids=token_ids,
            new_blocks=self._take_new(held),
            sample=sample,
            rewrite=held.stale,
        )
        held.stale = False
        held.computed, held.sure = end, max(held.sure, end)
        return chunk

    def follow(self, key: int) -> ScheduledChunk | None:
        """Returns a chunk of the token that the step before samples for a sequence; None if it does not fit.

        The guess is noted later (`note_guess`).
        """
        held = self._held[key]
        if not self._grow(held, held.computed + 1):
            return None
        held.computed += 1
        return ScheduledChunk(
            seq_id=held.draft_id,
            start=held.computed - 1,
            token_ids=[],
            new_blocks=self._take_new(held),
            sample=True,
            follow=True,
        )

    def note_guess(self, key: int, token_id: int) -> None:
        """Notes the token that a step has sampled for the position after those known."""
        held = self._held.get(key)
        if held is not None:
            held.guesses.append(token_id)

    def check_invariants(self) -> None:
        """Raises `AssertionError` if a block is used twice or lost, or one is missing."""
        used = [block for held in self._held.values() for block in held.blocks]
        assert sorted(used + self._free) == list(range(self._num_blocks)), "blocks are lost or used twice"
        for held in self._held.values():
            assert held.computed <= len(held.blocks) * BLOCK_SIZE, "tokens without blocks"
            assert held.num_sent <= len(held.blocks), "the engine was told of blocks that are not there"

    def _grow(self, held: _Held, end: int) -> bool:
        """Gives a sequence blocks for so many tokens; False if it cannot have them."""
        missing = -(-end // BLOCK_SIZE) - len(held.blocks)
        if end > self._context_length or missing > len(self._free):
            return False
        for _ in range(missing):
            held.blocks.append(self._free.pop())
        return True

    @staticmethod
    def _take_new(held: _Held) -> list[int]:
        new = held.blocks[held.num_sent :]
        held.num_sent = len(held.blocks)
        return new
