"""The block manager against a naive model under random loads, and its guarantees case by case."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.domain.blocks.manager import BlockManager
from services.worker.domain.blocks.names import BlockNames, PrefixSharing
from services.worker.domain.blocks.pool import blocks_for
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.plan import BLOCK_SIZE

NAMES = [bytes([number]) * 16 for number in range(20)]


def manager(blocks: int, *, filled: int = 0) -> BlockManager:
    """A manager with `filled` cached blocks, named NAMES[0], NAMES[1], and so on."""
    blocks_of = BlockManager(blocks)
    blocks_of.allocate(99, filled * BLOCK_SIZE)
    blocks_of.register(99, 0, NAMES[:filled])
    blocks_of.release(99)
    return blocks_of


def test_the_beginning_that_is_there_is_shared_but_never_the_last_token() -> None:
    blocks = manager(16, filled=4)
    assert blocks.allocate(1, 64, NAMES[:4]) == 48
    assert blocks.allocate(2, 65, NAMES[:4]) == 64
    assert blocks.allocate(3, 65, [NAMES[0], NAMES[9], NAMES[2]]) == 16  # blocks after a gap are not used
    assert blocks.allocate(4, 65) == 0
    assert blocks.table(1)[:3] == blocks.table(2)[:3]
    assert blocks.table(1)[0] == blocks.table(3)[0]
    assert blocks.num_exclusive(3) == 4
    blocks.check_invariants()


@given(st.integers(0, 300), st.integers(0, 300))
def test_what_is_found_is_reported_in_a_few_look_ups(cached: int, asked: int) -> None:
    class Watched(list[bytes]):
        looked_up = 0

        def __getitem__(self, index: Any) -> Any:
            self.looked_up += 1
            return super().__getitem__(index)

        def __iter__(self) -> Iterator[bytes]:
            raise AssertionError("all names are looked at")

    names = [number.to_bytes(4, "big") for number in range(300)]
    blocks = BlockManager(300)
    blocks.allocate(1, cached * BLOCK_SIZE, ())
    blocks.register(1, 0, names[:cached])
    watched = Watched(names[:asked])
    assert blocks.estimate_found(watched) == blocks.num_found(names[:asked])
    assert watched.looked_up <= 10


def test_a_freed_block_keeps_its_content_until_another_needs_the_place() -> None:
    blocks = manager(4, filled=3)
    assert (blocks.num_free, blocks.num_cached) == (4, 3)
    assert blocks.allocate(1, 20) == 0  # takes the empty block, then the last cached one
    assert [blocks.is_cached(name) for name in NAMES[:3]] == [True, True, False]
    assert blocks.allocate(2, 33, NAMES[:3]) is None
    assert blocks.cost(33, NAMES[:3]) == 3
    blocks.release(1)
    assert blocks.allocate(2, 33, NAMES[:3]) == 32
    blocks.check_invariants()


def test_what_was_used_last_stays_longest() -> None:
    blocks = manager(3)
    for number in range(3):
        blocks.allocate(number, 16)
        blocks.register(number, 0, [NAMES[number]])
    for number in (1, 2, 0):
        blocks.release(number)
    assert blocks.allocate(7, 17, NAMES[1:2]) == 16  # its second block was that of sequence 2
    assert [blocks.is_cached(name) for name in NAMES[:3]] == [True, True, False]


def test_content_that_is_computed_twice_is_kept_once() -> None:
    blocks = manager(4)
    for seq_id in (1, 2):
        blocks.allocate(seq_id, 16)
        blocks.register(seq_id, 0, NAMES[:1])
    blocks.release(1)
    blocks.release(2)
    blocks.check_invariants()
    assert (blocks.num_cached, blocks.num_free) == (1, 4)


def test_content_that_is_not_to_be_trusted_is_not_found_again() -> None:
    blocks = manager(8, filled=2)
    blocks.allocate(1, 40, NAMES[:2])
    blocks.allocate(2, 40, NAMES[:2])
    blocks.forget(1)
    assert blocks.allocate(3, 40, NAMES[:2]) == 0
    for seq_id in (1, 2, 3):
        blocks.check_invariants()
        blocks.release(seq_id)
    assert (blocks.num_cached, blocks.num_free) == (0, 8)


@pytest.mark.parametrize(("sharing", "same", "others"), [("tenant", 2, 0), ("all", 2, 2), ("off", 0, 0)])
def test_tenants_share_only_where_the_setting_says_so(sharing: PrefixSharing, same: int, others: int) -> None:
    names = BlockNames("fingerprint", sharing=sharing)
    blocks = BlockManager(32)

    def make(tenant: str) -> Sequence:
        return Sequence(tenant, 0, list(range(40)), 40, 1, EngineSampling(), tenant=tenant)

    first = make("a")
    blocks.allocate(1, 40, names.of(first))
    blocks.register(1, 0, names.of(first))
    for seq_id, (tenant, expected) in enumerate([("a", same), ("b", others)], start=2):
        assert blocks.allocate(seq_id, 40, names.of(make(tenant))) == expected * BLOCK_SIZE


@given(st.integers(0, 70), st.integers(0, 40), st.integers(0, 40), st.sampled_from(["tenant", "all", "off"]))
def test_choices_have_the_names_that_their_tokens_give(
    prompt: int, before: int, other: int, sharing: PrefixSharing
) -> None:
    names = BlockNames("fingerprint", sharing=sharing)
    tokens = list(range(prompt))

    def choice(index: int, output: list[int], first: Sequence | None = None) -> Sequence:
        return Sequence("r", index, tokens + output, prompt, 100, EngineSampling(), tenant="t", first=first)

    first = choice(0, [7] * before)
    second = choice(1, [8] * other, first)
    for sequence in (second, first, second):
        assert names.of(sequence) == names.of_tokens(sequence.tokens, "t")
    second.tokens += [9] * 30
    assert names.of(second) == names.of_tokens(second.tokens, "t")


def test_names_grow_with_the_tokens() -> None:
    names = BlockNames("fingerprint")
    whole = Sequence("r", 0, list(range(100)), 100, 1, EngineSampling())
    growing = Sequence("r", 0, [], 0, 1, EngineSampling())
    for token_id in range(100):
        growing.tokens.append(token_id)
        assert len(names.of(growing)) == len(growing.tokens) // BLOCK_SIZE
    assert names.of(growing) == names.of(whole)


@dataclass
class Naive:
    """A block manager that finds everything by linear search.

    Attributes:
        num_blocks: The number of blocks.
        content: The text up to and including each cached block, by block.
        tables: The blocks of each sequence, by sequence.
        idle: Cached blocks that no sequence uses, the next to be reused first.
    """

    num_blocks: int
    content: dict[int, str] = field(default_factory=dict)
    tables: dict[int, list[int]] = field(default_factory=dict)
    idle: list[int] = field(default_factory=list)

    def free(self) -> set[int]:
        return set(range(self.num_blocks)) - {block for table in self.tables.values() for block in table}

    def find(self, text: str) -> list[int]:
        found = []
        for end in range(1, len(text)):
            matching = [block for block, content in self.content.items() if content == text[:end]]
            if not matching:
                break
            found.append(matching[0])
        return found


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_random_loads_agree_with_the_naive_model(seed: int, num_blocks: int) -> None:
    """A letter stands for the 16 tokens of a block, a word for a sequence; a word is computed in one step."""
    chance = random.Random(seed)
    blocks, naive = BlockManager(num_blocks), Naive(num_blocks)
    words: dict[int, str] = {}
    for seq_id in range(60):
        if words and chance.random() < 0.5:
            ended = chance.choice(list(words))
            del words[ended]
            for block in reversed(naive.tables.pop(ended)):
                if block in naive.free() and block in naive.content:
                    naive.idle.append(block)
            blocks.release(ended)
        word = "".join(chance.choices("ab", k=chance.randint(1, 6)))
        names = [word[:end].encode() for end in range(1, len(word) + 1)]
        found = naive.find(word)
        fits = len(set(found) & naive.free()) + len(word) - len(found) <= len(naive.free())
        cached = blocks.allocate(seq_id, len(word) * BLOCK_SIZE, names)
        assert cached == (len(found) * BLOCK_SIZE if fits else None)
        if cached is None:
            assert blocks.num_free == len(naive.free())
            continue
        words[seq_id] = word
        table = blocks.table(seq_id)
        assert list(table[: len(found)]) == found
        naive.idle = [block for block in naive.idle if block not in found]
        new = list(table[len(found) :])
        empty = len(naive.free() - set(naive.content))
        evicted = {block for block in new if block in naive.content}
        assert set(new) <= naive.free() - set(found)
        assert evicted == set(naive.idle[: max(0, len(new) - empty)])
        naive.idle = [block for block in naive.idle if block not in evicted]
        for block in evicted:
            del naive.content[block]
        naive.tables[seq_id] = list(table)
        blocks.register(seq_id, len(found), names[len(found) :])
        for end, block in enumerate(table, start=1):
            if word[:end] not in naive.content.values():
                naive.content[block] = word[:end]
        blocks.check_invariants()
        assert (blocks.num_free, blocks.num_cached) == (len(naive.free()), len(naive.idle))


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6), st.integers(1, 9 * BLOCK_SIZE)), max_size=60))
def test_blocks_are_never_lost(calls: list[tuple[bool, int, int]]) -> None:
    blocks = BlockManager(24)
    known: set[int] = set()
    for release, seq_id, tokens in calls:
        if release:
            blocks.release(seq_id)
            known.discard(seq_id)
            continue
        if seq_id not in known:
            assert blocks.allocate(seq_id, 0) == 0
            known.add(seq_id)
        free, held = blocks.num_free, len(blocks.table(seq_id))
        added = blocks.append(seq_id, tokens)
        if added is None:
            assert blocks_for(tokens) - held > free == blocks.num_free
        else:
            assert len(blocks.table(seq_id)) == max(held, blocks_for(tokens))
        blocks.check_invariants()


@pytest.mark.parametrize("damage", ["readers", "empty", "names", "cached", "tables"])
def test_damage_is_seen(damage: str) -> None:
    blocks = manager(8, filled=2)
    blocks.allocate(1, 40, NAMES[:2])
    blocks.check_invariants()
    pool, first = blocks._pool, blocks.table(1)[0]
    if damage == "readers":
        pool.share(first)
    elif damage == "empty":
        pool._empty.pop()
    elif damage == "names":
        pool.by_name[NAMES[7]] = first
    elif damage == "cached":
        blocks.release(1)
        pool.unname(first)
    else:
        blocks._tables[1].append(first)
    with pytest.raises(AssertionError):
        blocks.check_invariants()


def test_misuse_is_refused() -> None:
    blocks = BlockManager(4)
    blocks.allocate(1, 1)
    with pytest.raises(ValueError, match="has a block table already"):
        blocks.allocate(1, 1)
