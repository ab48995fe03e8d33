"""Segments of the host tier: read by others, bounded, safe from dead writers, other users and torn slots."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.worker.host_kv.host_pool import HostPool
from services.worker.host_kv.pool_directory import (
    DEAD_S,
    DeadSegments,
    UnsafeDirectory,
    open_directory,
)
from services.worker.host_kv.segment import NotASegment, SegmentShape
from services.worker.host_kv.segment_writer import SegmentWriter

LOW, HIGH = SegmentShape(4, 0, 2, 64), SegmentShape(4, 2, 2, 64)
NAMES = [bytes([at + 1]) * 16 for at in range(12)]


def _put(writer: SegmentWriter, name: bytes, *, release: bool = True) -> None:
    slot = writer.lend()
    assert slot is not None
    slot.rows[:] = name[0]
    writer.publish(slot, name)
    if release:
        writer.release(slot)


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "pool")


@pytest.fixture
def pool(root: str) -> HostPool:
    return HostPool(open_directory(root))


def _count(pool: HostPool, names: list[bytes], heads: int = 2) -> int:
    pool.refresh()
    return pool.count(names, heads)


def test_a_block_is_there_when_ranks_wrote_all_its_heads(root: str, pool: HostPool) -> None:
    low, high = SegmentWriter(root, "g0", LOW), SegmentWriter(root, "g0", HIGH)
    _put(low, NAMES[0])
    _put(low, NAMES[1])
    assert _count(pool, NAMES[:2], 4) == 0
    _put(high, NAMES[0])
    assert _count(pool, NAMES[:2], 4) == 1
    rows = pool.rows(NAMES[0], range(1, 4))
    assert rows is not None
    assert [(part.first_head, part.data.shape) for part in rows] == [(1, (1, 64)), (2, (2, 64))]
    assert all(part.is_intact() and (part.data == NAMES[0][0]).all() for part in rows)
    assert pool.rows(NAMES[1], range(1, 4)) is None


def test_the_ring_is_bounded_and_the_oldest_block_goes(root: str, pool: HostPool) -> None:
    writer = SegmentWriter(root, "g0", LOW)
    for round_at, name in enumerate(NAMES):
        _put(writer, name)
        here = [one for one in NAMES if _count(pool, [one])]
        assert here == NAMES[max(0, round_at - 3) : round_at + 1]
    late = HostPool(open_directory(root))
    assert _count(late, NAMES[8:]) == 4
    for name in NAMES[:6]:  # more than a round between two looks
        _put(writer, name)
    assert _count(late, NAMES[2:6]) == 4
    assert _count(late, NAMES[8:]) == 0


def test_a_slot_in_use_is_not_overwritten(root: str) -> None:
    writer = SegmentWriter(root, "g0", LOW)
    held = writer.lend()
    assert held is not None
    writer.publish(held, NAMES[0])
    for name in NAMES[1:4]:
        _put(writer, name)
    assert writer.lend() is None
    writer.release(held)
    assert writer.lend() is not None


def test_a_torn_slot_is_never_read(root: str, pool: HostPool) -> None:
    writer = SegmentWriter(root, "g0", LOW)
    for name in NAMES[:4]:
        _put(writer, name)
    pool.refresh()
    rows = pool.rows(NAMES[0], range(2))
    assert rows is not None
    assert rows[0].is_intact()
    slot = writer.lend()  # of the oldest block, whose bytes change while a reader copies them
    assert slot is not None
    slot.rows[0, :8] = 0
    assert not rows[0].is_intact()
    assert pool.rows(NAMES[0], range(2)) is None
    writer.discard(slot)
    assert _count(pool, [bytes(16)]) == 1  # the name of no block
    assert _count(pool, NAMES[1:4]) == 3


_DIES = """
import os, sys
from services.worker.host_kv.segment import SegmentShape
from services.worker.host_kv.segment_writer import SegmentWriter
writer = SegmentWriter(sys.argv[1], "g0", SegmentShape(4, 0, 2, 64))
for first in (1, 2, 3):
    slot = writer.lend()
    slot.rows[:] = first
    if first < 3:
        writer.publish(slot, bytes([first]) * 16)
os.kill(os.getpid(), 9)
"""


def test_blocks_outlive_a_writer_that_died_in_the_middle_of_one(root: str, pool: HostPool) -> None:
    died = subprocess.run([sys.executable, "-c", _DIES, root], check=False)
    assert died.returncode == -9
    assert [name for name in NAMES if _count(pool, [name])] == NAMES[:2]
    writer = SegmentWriter(root, "g0", LOW)  # the next process of that rank goes on in the same file
    assert len(os.listdir(root)) == 1
    for name in NAMES[2:5]:
        _put(writer, name)
    assert [name for name in NAMES if _count(pool, [name])] == NAMES[1:5]


def test_a_segment_has_one_writer_and_one_shape(root: str) -> None:
    first = SegmentWriter(root, "g0", LOW)
    second = SegmentWriter(root, "g0", LOW)  # while the one before has not ended
    assert len(os.listdir(root)) == 2
    SegmentWriter(root, "g0", LOW)
    with pytest.raises(NotASegment, match="other processes"):
        SegmentWriter(root, "g0", LOW)
    first.close()
    second.close()
    larger = SegmentWriter(root, "g0", SegmentShape(9, 0, 2, 64))
    assert larger.shape.slots == 9
    with pytest.raises(NotASegment, match="RYZ_KV_HOST_BYTES"):
        SegmentWriter(root, "g1", SegmentShape.within(8192, range(2), 64))


def test_what_dead_processes_left_is_removed_after_a_while(root: str) -> None:
    living, dead = SegmentWriter(root, "g0", LOW), SegmentWriter(root, "g1", LOW)
    dead.close()
    (Path(root) / "g2.0-2.0.new").touch(0o600)
    now = 100.0
    sweep = DeadSegments(Path(root), lambda: now)
    assert sweep.sweep() == 0
    now += DEAD_S - 1
    assert sweep.sweep() == 0
    now += 1
    assert sweep.sweep() == 2
    assert os.listdir(root) == ["g0.0-2.0.kv"]
    living.close()


def test_a_revoked_block_is_found_by_none(root: str, pool: HostPool) -> None:
    writer = SegmentWriter(root, "g0", LOW)
    for name in NAMES[:3]:
        _put(writer, name)
    other = HostPool(open_directory(root))
    assert _count(other, NAMES[:3]) == 3
    pool.refresh()
    pool.revoke([NAMES[1], NAMES[9]])
    assert [name for name in NAMES if _count(other, [name])] == [NAMES[0], NAMES[2]]


def test_directories_of_others_are_refused(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o755)
    with pytest.raises(UnsafeDirectory, match="RYZ_KV_HOST_DIR"):
        open_directory(str(open_to_all))
    file = tmp_path / "file"
    file.touch(0o600)
    with pytest.raises(UnsafeDirectory):
        open_directory(str(file))


@pytest.mark.parametrize("spoil", ["mode", "short", "header", "link", "owner"])
def test_files_that_are_no_segments_of_this_user_are_refused(root: str, pool: HostPool, spoil: str) -> None:
    writer = SegmentWriter(root, "g0", LOW)
    _put(writer, NAMES[0])
    path = Path(root) / "g0.0-2.0.kv"
    match spoil:
        case "mode":
            path.chmod(0o644)
        case "short":
            os.truncate(path, path.stat().st_size - 1)
        case "header":
            path.write_bytes(b"no such header" + path.read_bytes()[14:])
        case "link":
            path.rename(path.with_suffix(".elsewhere"))
            path.symlink_to(path.with_suffix(".elsewhere"))
        case _:
            if os.geteuid():
                pytest.skip("only root can give files to others")
            os.chown(path, 12345, 12345)
    assert _count(pool, NAMES[:1]) == 0
    assert pool.num_segments == 0
