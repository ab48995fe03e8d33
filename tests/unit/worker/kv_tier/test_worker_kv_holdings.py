"""Commits of written blocks to the index: in batches, repeated after failures, and only of stored blocks."""

import asyncio
from contextlib import suppress

import pytest

from services.worker.domain.answers.choice_state import ChoiceState
from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.blocks.write_behind import WriteBehind
from services.worker.domain.generation.generation import Generation
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.leader.kv_tier import block_ownership
from services.worker.leader.kv_tier.block_ownership import FEW_BLOCKS, LINGER_S, MAX_BATCH, BlockOwnership
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.plan import BLOCK_SIZE
from shared import kv_hash
from shared.errors import Unavailable
from shared.messages import BlocksCommitted
from tests.kits.waiting import until
from tests.kits.worker.kv_tier import Index
from tests.kits.worker.leader import chat, leader_context


class Committer:
    """A `BlockOwnership` with an index that stores block names only."""

    def __init__(self) -> None:
        self.now = 100.0
        self.index = Index({})
        self.pauses: list[float] = []
        self.behind = WriteBehind()
        self.behind.enabled = True
        self.blocks = BlockManager(4096)
        self.ownership = BlockOwnership(
            leader_context(clock=lambda: self.now),
            self.index,
            timeout_s=1.0,
            pause=self.pauses.append,
        )
        self._made = 0

    def sequence(self, name: str, count: int, *, written: bool = True) -> Generation:
        """Begins a generation of one sequence with `count` full blocks, and tracks its blocks."""
        self._made += 1
        one = Sequence(
            request_id=name,
            choice=0,
            tokens=[1] * (count * BLOCK_SIZE + 1),
            prompt_len=1,
            max_tokens=9,
            sampling=EngineSampling(),
        )
        one.block_names += [self._made.to_bytes(8, "big") + at.to_bytes(8, "big") for at in range(count)]
        generation = Generation(chat(name), "", 1e9, 0.0)
        generation.choices.append(ChoiceState(one, None, None, str))  # type: ignore[arg-type]
        self.blocks.allocate(self._made, count * BLOCK_SIZE)
        self.blocks.register(self._made, 0, one.block_names)
        self.ownership.begin_generation(generation)
        if written:
            self.write(generation)
        return generation

    def write(self, generation: Generation, count: int = 1 << 20) -> list[bytes]:
        names = generation.choices[0].sequence.block_names[:count]
        self.behind.add(names)
        self.flush()
        return names

    def flush(self) -> list[bytes]:
        """Writes all waiting blocks and returns their names."""
        written = []
        while copies := self.behind.take(self.blocks):
            written += [copy.name for copy in copies]
        self.index.store.update({name: [] for name in written})
        self.behind.done(written, [])
        return written

    async def commit_due(self) -> list[int]:
        """Commits what is due; returns the number of blocks of each sequence."""
        before = len(self.index.held)
        await self.ownership.commit_due(self.behind)
        return [len(one.names) // 16 for one in self.index.held[before:]]


async def test_running_sequences_are_reported_now_and_then_and_at_their_end() -> None:
    committer = Committer()
    one = committer.sequence("a", FEW_BLOCKS + 3, written=False)
    committer.write(one, FEW_BLOCKS - 1)
    assert await committer.commit_due() == []
    committer.write(one, FEW_BLOCKS)
    assert await committer.commit_due() == [FEW_BLOCKS]
    committer.write(one)
    assert await committer.commit_due() == []
    committer.ownership.end_generation(one)
    assert await committer.commit_due() == [FEW_BLOCKS + 3]
    assert committer.ownership.num_held == 0
    committer.ownership.end_generation(one)  # no effect: it is forgotten


async def test_an_end_waits_for_what_is_being_written_but_not_for_ever() -> None:
    committer = Committer()
    one = committer.sequence("a", 3, written=False)
    names = one.choices[0].sequence.block_names
    committer.write(one, 2)
    committer.behind.add(names)
    committer.behind.take(committer.blocks)
    committer.ownership.end_generation(one)
    assert await committer.commit_due() == []
    committer.now += LINGER_S + 1
    assert await committer.commit_due() == [2]
    assert committer.ownership.num_held == 0


async def test_one_with_nothing_written_leaves() -> None:
    committer = Committer()
    committer.ownership.end_generation(committer.sequence("a", 3, written=False))
    assert await committer.commit_due() == []
    assert committer.ownership.num_held == 0


async def test_what_was_not_heard_is_reported_again_and_then_forgotten() -> None:
    committer = Committer()
    committer.index.away = True
    committer.ownership.end_generation(committer.sequence("a", 3))
    with pytest.raises(Unavailable):
        await committer.commit_due()
    committer.index.away = False
    assert await committer.commit_due() == [3]
    committer.index.away = True
    committer.ownership.end_generation(committer.sequence("b", 3))
    committer.now += 2 * LINGER_S + 1
    assert await committer.commit_due() == []
    assert committer.ownership.num_held == 0


async def test_batches_are_bounded_in_sequences_and_in_names(monkeypatch: pytest.MonkeyPatch) -> None:
    committer = Committer()
    for number in range(MAX_BATCH + 5):
        committer.ownership.end_generation(committer.sequence(f"a{number}", 2))
    assert await committer.commit_due() == [2] * (MAX_BATCH + 5)
    assert [len(commit) for commit in committer.index.commits] == [MAX_BATCH, 5]
    monkeypatch.setattr(block_ownership, "MAX_BATCH_NAMES", 20)
    committer.index.commits.clear()
    for number, count in enumerate((30, 12, 8, 3)):
        committer.ownership.end_generation(committer.sequence(f"b{number}", count))
    assert sorted(await committer.commit_due()) == [3, 8, 12, 30]
    assert [[len(one.names) // 16 for one in commit] for commit in committer.index.commits] == [
        [30],
        [12, 8],
        [3],
    ]


async def test_there_are_never_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_ownership, "MAX_HOLDINGS", 3)
    committer = Committer()
    generations = [committer.sequence(f"a{number}", 1) for number in range(5)]
    assert committer.ownership.num_held == 3
    for generation in generations:
        committer.ownership.end_generation(generation)
    assert await committer.commit_due() == [1, 1, 1]
    newest = [generation.choices[0].sequence.block_names[0] for generation in generations[2:]]
    assert [one.names for one in committer.index.held] == newest
    committer.sequence("b", 1)
    assert committer.ownership.num_held == 1
    committer.ownership.close_store()
    assert committer.ownership.num_held == 0


async def test_only_what_is_lost_is_written_again_and_reported() -> None:
    committer = Committer()
    whole, torn = committer.sequence("a", 10), committer.sequence("b", 10)
    names = torn.choices[0].sequence.block_names
    for name in names[6:]:
        del committer.index.store[name]
    committer.ownership.end_generation(torn)
    assert await committer.commit_due() == [10, 10]
    assert committer.flush() == names[6:]
    assert await committer.commit_due() == [10]
    assert committer.ownership.num_held == 1
    assert committer.behind.num_known_of(whole.choices[0].sequence.block_names) == 10
    committer.ownership.end_generation(whole)
    assert await committer.commit_due() == []
    assert committer.ownership.num_held == 0


async def test_what_the_store_never_keeps_is_not_written_for_ever() -> None:
    committer = Committer()
    one = committer.sequence("a", 10)
    for _ in range(5):
        committer.index.store.clear()  # as for a deleted session
        await committer.commit_due()
        committer.flush()
    assert len(committer.index.commits) == 2
    committer.ownership.end_generation(one)
    await committer.commit_due()
    assert committer.ownership.num_held == 0


async def test_what_is_over_a_quota_does_not_make_others_write_again() -> None:
    committer = Committer()
    for name in "abc":
        committer.sequence(name, 10)
    committer.index.answers = [BlocksCommitted(stored=25, over_quota=[1])]
    assert await committer.commit_due() == [10, 10, 10]
    assert not committer.behind.has_work
    assert committer.index.finds == 0


async def test_a_store_without_room_is_reported_again_after_the_pause() -> None:
    committer = Committer()
    committer.ownership.end_generation(committer.sequence("a", 4))
    committer.index.answers = [BlocksCommitted(stored=0, pause_ms=2000, evicted=3)]
    assert await committer.commit_due() == [4]
    assert committer.pauses == [2.0]
    assert await committer.commit_due() == []
    committer.now += 2.1
    assert await committer.commit_due() == [4]
    assert not committer.behind.has_work
    assert committer.ownership.num_held == 0


async def test_goes_on_after_trouble_and_rests_while_there_is_no_store() -> None:
    committer = Committer()
    behind: WriteBehind | None = None
    task = asyncio.create_task(committer.ownership.commit_forever(lambda: behind, 0.005))
    committer.ownership.end_generation(committer.sequence("a", 3))
    await asyncio.sleep(0.03)
    assert committer.index.commits == []
    committer.index.away = True
    behind = committer.behind
    await asyncio.sleep(0.03)
    committer.index.away = False
    await until(lambda: bool(committer.index.commits))
    assert kv_hash.split(committer.index.held[0].names)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
