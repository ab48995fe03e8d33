"""The limit of a KV cache follows the memory that is available, and does not swing."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from services.worker.domain.blocks.cache_room import QUIET_S, CacheRoom, CacheUse, Margins

MIB = 1 << 20
MARGINS = Margins(low=512 * MIB, high=1024 * MIB)
BLOCK = MIB


def _use(held: int, floor: int = 100) -> CacheUse:
    return CacheUse(num_blocks=1600, num_held=held, floor=floor, block_bytes=BLOCK)


def test_with_memory_to_spare_there_is_no_limit() -> None:
    room = CacheRoom(MARGINS)
    assert room.next_limit(0.0, 5000 * MIB, _use(0)) == 1600
    assert room.next_limit(1.0, 513 * MIB, _use(1600)) == 1600


def test_it_falls_to_what_is_held_less_what_is_lacking() -> None:
    room = CacheRoom(MARGINS)
    assert room.next_limit(0.0, 500 * MIB, _use(1000)) == 1000 - 268  # up to the middle of the margins
    assert room.next_limit(1.0, 0, _use(732)) == 732 - 400  # a quarter of all blocks at once
    assert room.next_limit(2.0, 0, _use(332)) == 100
    assert room.next_limit(3.0, 0, _use(100)) == 100  # the longest request still fits


def test_it_rises_slowly_after_a_quiet_while() -> None:
    room = CacheRoom(MARGINS)
    room.next_limit(0.0, 500 * MIB, _use(1000))
    assert room.next_limit(1.0, 3000 * MIB, _use(700)) == 732
    assert room.next_limit(QUIET_S - 0.1, 3000 * MIB, _use(700)) == 732
    assert room.next_limit(QUIET_S, 1000 * MIB, _use(700)) == 732  # between the margins
    assert room.next_limit(QUIET_S + 1, 1034 * MIB, _use(700)) == 742  # no more than what is to spare
    assert room.next_limit(QUIET_S + 2, 3000 * MIB, _use(700)) == 842
    for second in range(10):
        last = room.next_limit(QUIET_S + 3 + second, 3000 * MIB, _use(700))
    assert last == 1600


def test_margins_follow_the_size_of_the_machine() -> None:
    assert Margins.of(1024 * MIB) == Margins(64 * MIB, 128 * MIB)
    assert Margins.of(8192 * MIB) == Margins(256 * MIB, 512 * MIB)
    assert Margins.of(10**13) == Margins(1024 * MIB, 2048 * MIB)


@given(
    others=st.lists(st.integers(0, 4000), min_size=1, max_size=60),
    floor=st.integers(1, 1600),
    used=st.integers(0, 1600),
)
def test_what_others_take_is_made_room_for_and_nothing_swings(
    others: list[int], floor: int, used: int
) -> None:
    """A machine of 4,000 blocks; the cache fills at once up to its limit, others take memory in steps."""
    room, now = CacheRoom(MARGINS), 0.0
    limit = 1600
    for taken in others:
        limits = list[int]()
        for _ in range(40):
            held = max(used, limit)
            available = max(0, 4000 - taken - held) * MIB
            limit = room.next_limit(now, available, _use(held, floor))
            assert floor <= limit <= 1600
            limits.append(limit)
            now += 1.0
        held = max(used, limit)
        assert limit == floor or held <= used or (4000 - taken - held) * MIB >= MARGINS.low
        falls = sum(after < before for before, after in pairwise(limits[10:]))
        assert falls == 0 or (4000 - taken - used) * MIB < MARGINS.low  # it settled
