"""Plans steps as a leader would, and generates with an engine; needs no torch."""

from typing import Any

import msgspec

from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.plan import BLOCK_SIZE, Engine, NewSequence, ScheduledChunk, StepPlan

GREEDY = EngineSampling(temperature=0)


def new_sequence(
    seq_id: int, token_ids: list[int], sampling: EngineSampling = GREEDY, **fields: Any
) -> NewSequence:
    """A sequence whose tokens are all prompt tokens."""
    options: dict[str, Any] = {"prompt_len": len(token_ids), "sampling": sampling} | fields
    return NewSequence(seq_id=seq_id, token_ids=token_ids, **options)


class Blocks:
    """Allocates blocks for chunks as the leader would, but not in ascending order."""

    def __init__(self, num_blocks: int) -> None:
        self._free = [(block * 7 + 3) % num_blocks for block in range(num_blocks)]
        assert len(set(self._free)) == num_blocks, "choose a number of blocks that 7 does not divide"
        self._held: dict[int, list[int]] = {}

    def chunk(self, seq_id: int, start: int, token_ids: list[int], sample: bool = True) -> ScheduledChunk:
        """A chunk with newly allocated blocks as needed."""
        held = self._held.setdefault(seq_id, [])
        needed = -(-(start + len(token_ids)) // BLOCK_SIZE) - len(held)
        new = [self._free.pop() for _ in range(max(0, needed))]
        held += new
        return ScheduledChunk(seq_id=seq_id, start=start, token_ids=token_ids, new_blocks=new, sample=sample)

    def share(self, giver: int, seq_id: int, start: int, token_ids: list[int]) -> ScheduledChunk:
        """The first chunk of a sequence that shares the giver's blocks for its tokens before `start`."""
        assert start % BLOCK_SIZE == 0, "only full blocks can be shared"
        shared = self._held[giver][: start // BLOCK_SIZE]
        self._held[seq_id] = list(shared)
        part = self.chunk(seq_id, start, token_ids)
        return msgspec.structs.replace(part, new_blocks=shared + part.new_blocks)

    def release(self, seq_id: int) -> None:
        """Frees the blocks that no other sequence holds. The next chunk reuses them without clearing."""
        blocks = self._held.pop(seq_id, [])
        in_use = {block for held in self._held.values() for block in held}
        self._free += [block for block in blocks if block not in in_use]


def num_steps(engine: Engine) -> int:
    """The number of steps that ranks got since the engine's start."""
    return int(str(engine.status()[0]["steps"]))


async def generate(
    engine: Engine, prompts: list[list[int]], count: int, samplings: list[EngineSampling], first_id: int = 1
) -> list[list[int]]:
    """Generates for all prompts in one batch, prompts in chunks of 50 tokens; then releases them."""
    blocks = Blocks(512)
    ids = range(first_id, first_id + len(prompts))
    made: dict[int, list[int]] = {seq_id: [] for seq_id in ids}
    step_id = 0
    admit = [new_sequence(i, p, s) for i, p, s in zip(ids, prompts, samplings, strict=True)]
    for begin in range(0, max(map(len, prompts)), 50):
        chunks = [
            blocks.chunk(i, begin, p[begin : begin + 50], sample=begin + 50 >= len(p))
            for i, p in zip(ids, prompts, strict=True)
            if begin < len(p)
        ]
        result = await engine.submit(StepPlan(step_id=step_id, admit=admit, chunks=chunks))
        admit, step_id = [], step_id + 1
        for sampled in result.sampled:
            made[sampled.seq_id].append(sampled.token_id)
    while unfinished := [i for i in ids if len(made[i]) < count]:
        chunks = [
            blocks.chunk(i, len(prompts[i - first_id]) + len(made[i]) - 1, made[i][-1:]) for i in unfinished
        ]
        result = await engine.submit(StepPlan(step_id=step_id, chunks=chunks))
        step_id += 1
        assert [sampled.seq_id for sampled in result.sampled] == unfinished
        for sampled in result.sampled:
            made[sampled.seq_id].append(sampled.token_id)
    await engine.submit(StepPlan(step_id=step_id, release=list(ids)))
    return [made[i] for i in ids]
