"""The sequences of a draft model's engine: their blocks, and how much of each it has computed.

The engine has a KV cache of its own. Each of its sequences follows one of the target: before guesses are made
it computes the tokens that it lacks, in place of guesses that were refused. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from services.worker.domain.scheduling.sequence import Sequence
from services.worker.rank_protocol.plan import BLOCK_SIZE, NewSequence, ScheduledChunk, StepPlan

CATCH_UP_TOKENS = 128  # of one sequence in one step: more would hold up the steps of the target


class Wish(NamedTuple):
    """A sequence of the target that may have so many guesses."""

    sequence: Sequence
    most: int


@dataclass(slots=True)
class _Followed:
    """One sequence.

    Attributes:
        seq_id: Its number in the draft engine.
        blocks: Of its KV.
        known: Tokens of the target when guesses were made last.
        guesses: Those that were made then.
        computed: The KV of so many first tokens, guesses included, is in the blocks.
    """

    seq_id: int
    blocks: list[int] = field(default_factory=list)
    known: int = 0
    guesses: list[int] = field(default_factory=list)
    computed: int = 0

    def drop_refused(self, tokens: list[int]) -> None:
        """Forgets guesses that the target did not take."""
        right = 0
        for guess, token in zip(self.guesses, tokens[self.known :], strict=False):
            if guess != token:
                break
            right += 1
        self.computed = min(self.computed, self.known + right)
        self.guesses = []


class DraftSequences:
    """The sequences of one start of the draft engine.

    Args:
        num_blocks: Of its KV cache.
        context_length: Tokens that a sequence may have there.
    """

    def __init__(self, num_blocks: int, context_length: int) -> None:
        self._free = list(range(num_blocks))
        self._context_length = context_length
        self._followed: dict[int, _Followed] = {}  # by the target's seq_id
        self._release: list[int] = []
        self._last_id = 0
        self._step_id = 0

    @property
    def num_free(self) -> int:
        """Free blocks."""
        return len(self._free)

    def retain(self, seq_ids: Iterable[int]) -> None:
        """Forgets all sequences but these of the target."""
        here = set(seq_ids)
        for gone in [key for key in self._followed if key not in here]:
            self._forget(gone)

    def follows(self, sequence: Sequence) -> bool:
        """Whether the draft engine has a sequence."""
        return sequence.seq_id in self._followed

    def missing(self, sequence: Sequence) -> int:
        """Tokens that are to be computed before the first guess."""
        followed = self._followed.get(sequence.seq_id)
        return len(sequence.tokens) - (followed.computed if followed is not None else 0)

    def begin(self, wishes: Iterable[Wish]) -> tuple[StepPlan, list[Wish]]:
        """Plans the step that computes what sequences lack, and samples their first guesses.

        Returns:
            The plan, and the wishes of those that sample: the others lack more than one step may compute.
            Sequences that do not fit into the context or the cache are left out.
        """
        admit, chunks, sampling = list[NewSequence](), list[ScheduledChunk](), list[Wish]()
        for sequence, count in wishes:
            known = len(sequence.tokens)
            if known + count > self._context_length:
                continue
            followed = self._followed.get(sequence.seq_id)
            is_new = followed is None
            if followed is None:
                self._last_id += 1
                followed = _Followed(self._last_id)
            followed.drop_refused(sequence.tokens)
            needed = -(-(known + count) // BLOCK_SIZE) - len(followed.blocks)
            if needed > len(self._free):
                continue
            if is_new:
                self._followed[sequence.seq_id] = followed
                admit.append(_admitted(followed.seq_id, sequence))
            new_blocks = [self._free.pop() for _ in range(max(0, needed))]
            followed.blocks += new_blocks
            start = followed.computed
            samples = known - start <= CATCH_UP_TOKENS
            end = known if samples else start + CATCH_UP_TOKENS
            chunks.append(
                ScheduledChunk(
                    seq_id=followed.seq_id,
                    start=start,
                    token_ids=sequence.tokens[start:end],
                    new_blocks=new_blocks,
                    sample=samples,
                    rewind=True,
                )
            )
            followed.known, followed.computed = known, end
            if samples:
                sampling.append(Wish(sequence, count))
        release: list[int] = []
        if chunks:  # else there is no step
            release, self._release = self._release, []
        return self._plan(release, admit, chunks), sampling

    def follow(self, wishes: Iterable[Wish], step: int) -> StepPlan | None:
        """Plans the step after `step` others that samples one more guess each; None: all have theirs."""
        chunks = []
        for sequence, count in wishes:
            if step < count:
                followed = self._followed[sequence.seq_id]
                chunks.append(
                    ScheduledChunk(
                        seq_id=followed.seq_id,
                        start=followed.computed,
                        token_ids=[],
                        sample=True,
                        follow=True,
                    )
                )
                followed.computed += 1
        return self._plan([], [], chunks) if chunks else None

    def note_guesses(self, sequence: Sequence, guesses: list[int]) -> None:
        """Notes what was sampled in a round."""
        self._followed[sequence.seq_id].guesses = guesses

    def id_of(self, sequence: Sequence) -> int:
        """The number of a sequence in the draft engine."""
        return self._followed[sequence.seq_id].seq_id

    def check_invariants(self) -> None:
        """Raises `AssertionError` if a block is used twice, or lost."""
        used = [block for one in self._followed.values() for block in one.blocks]
        assert len(set(used) | set(self._free)) == len(used) + len(self._free), "a block is used twice"
        for one in self._followed.values():
            assert one.computed <= BLOCK_SIZE * len(one.blocks), "tokens without a block"

    def _forget(self, key: int) -> None:
        followed = self._followed.pop(key)
        self._free += followed.blocks
        self._release.append(followed.seq_id)

    def _plan(self, release: list[int], admit: list[NewSequence], chunks: list[ScheduledChunk]) -> StepPlan:
        self._step_id += 1
        return StepPlan(step_id=self._step_id, release=release, admit=admit, slices=chunks)


def _admitted(seq_id: int, sequence: Sequence) -> NewSequence:
    """The sequence for the draft engine: it samples with the same randomness at the same positions."""
    return NewSequence(
        seq_id=seq_id,
        token_ids=sequence.tokens.copy(),
        prompt_len=sequence.prompt_len,
        sampling=msgspec.structs.replace(sequence.sampling, logprobs=-1, prompt_logprobs=-1),
        choice=sequence.choice,
        eos_ids=sorted(sequence.eos_ids),
    )
