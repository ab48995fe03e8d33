"""An engine without weights: one token per sequence and step, at once, always the same at a position.

It measures the serving path, and checks every plan as strictly as ranks rely on it: contiguous positions,
blocks that are there, shared with nobody and given back. A violation is an `EngineFailed`.
"""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field

from services.worker.domain.plan import (
    BLOCK_SIZE,
    Alternative,
    EngineFailed,
    EngineInfo,
    NewSequence,
    RankInfo,
    Sampled,
    Slice,
    StepPlan,
    StepResult,
)

TEXT = "The quick brown fox jumps over the lazy dog. "


@dataclass(slots=True)
class _Known:
    """A sequence as a rank would keep it: the next position, and room in its blocks."""

    logprobs: int
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    capacity: int = 0


class NullEngine:
    """See the module.

    tokens: the answer, over and over: position p gets tokens[p % len(tokens)].
    step_delay_s: how long a step takes; 0 does not even yield.
    """

    def __init__(
        self,
        *,
        tokens: list[int],
        num_blocks: int,
        vocab_size: int,
        context_length: int,
        step_delay_s: float = 0.0,
    ) -> None:
        self._tokens = tokens
        self._num_blocks = num_blocks
        self._vocab_size = vocab_size
        self._context_length = context_length
        self._step_delay_s = step_delay_s
        self._known: dict[int, _Known] = {}
        self._owners: dict[int, int] = {}  # block to sequence
        self._steps = 0
        self._last_seq_id = 0
        self._state = "stopped"

    async def start(self) -> EngineInfo:
        """There is nothing to load."""
        self._known, self._owners, self._steps, self._last_seq_id = {}, {}, 0, 0
        self._state = "ready"
        return EngineInfo(
            num_blocks=self._num_blocks,
            vocab_size=self._vocab_size,
            context_length=self._context_length,
            fingerprint="null",
            ranks=[RankInfo(rank=0, pid=os.getpid(), load_s=0.0, loaded_bytes=0, peak_rss_bytes=0)],
        )

    async def step(self, plan: StepPlan) -> StepResult:
        """Checks the plan and answers it."""
        if self._state != "ready":
            raise EngineFailed(f"the null engine is {self._state}, it cannot run step {plan.step_id}")
        if self._step_delay_s:
            await asyncio.sleep(self._step_delay_s)
        for seq_id in plan.release:
            self._release(seq_id)
        for new in plan.admit:
            self._admit(new)
        tokens, cycle, sampled = self._tokens, len(self._tokens), []
        for piece in plan.slices:
            known = self._compute(piece)
            if piece.sample:
                token_id = tokens[known.computed % cycle]
                if known.logprobs < 0:
                    sampled.append(Sampled(seq_id=piece.seq_id, token_id=token_id))
                else:
                    top = [Alternative(token_id, 0.0)] if known.logprobs else []
                    sampled.append(Sampled(seq_id=piece.seq_id, token_id=token_id, logprob=0.0, top=top))
        self._steps += 1
        return StepResult(step_id=plan.step_id, sampled=sampled)

    def watch(self, on_failure: Callable[[], None]) -> None:
        """It has no ranks that could die between steps."""

    def status(self) -> list[dict[str, object]]:
        """One rank, this process."""
        return [{"rank": 0, "pid": os.getpid(), "state": self._state, "steps": self._steps, "engine": "null"}]

    async def stop(self) -> None:
        """There is nothing to end."""
        self._state = "stopped"

    @property
    def held_blocks(self) -> int:
        """Blocks of sequences that were not released; tests look at it."""
        return len(self._owners)

    def _release(self, seq_id: int) -> None:
        known = self._known.pop(seq_id, None)
        if known is None:
            raise EngineFailed(f"the plan releases sequence {seq_id}, which is not there")
        for block in known.blocks:
            del self._owners[block]

    def _admit(self, new: NewSequence) -> None:
        if new.seq_id <= self._last_seq_id:
            raise EngineFailed(f"the plan admits sequence {new.seq_id} a second time")
        if not 0 < new.prompt_len <= len(new.token_ids):
            raise EngineFailed(f"sequence {new.seq_id} has a prompt of {new.prompt_len} tokens")
        self._last_seq_id = new.seq_id
        self._known[new.seq_id] = _Known(logprobs=new.sampling.logprobs)

    def _compute(self, piece: Slice) -> _Known:
        known = self._known.get(piece.seq_id)
        if known is None:
            raise EngineFailed(f"the plan computes sequence {piece.seq_id}, which was not admitted")
        if piece.start != known.computed or not piece.token_ids:
            raise EngineFailed(
                f"sequence {piece.seq_id} is computed up to {known.computed}, "
                f"the plan goes on at {piece.start} with {len(piece.token_ids)} tokens"
            )
        for block in piece.new_blocks:
            owner = self._owners.setdefault(block, piece.seq_id)
            if owner != piece.seq_id or block in known.blocks or not 0 <= block < self._num_blocks:
                raise EngineFailed(f"block {block} for sequence {piece.seq_id} is taken or does not exist")
            known.blocks.append(block)
            known.capacity += BLOCK_SIZE
        known.computed += len(piece.token_ids)
        if known.computed > known.capacity:
            raise EngineFailed(f"sequence {piece.seq_id} has blocks for {known.capacity} tokens only")
        return known
