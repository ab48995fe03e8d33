"""KV blocks through a real Redis: bit-exact copies between all splits of heads, damaged blocks, queues."""

import socket
import threading
from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import pytest

from services.worker.engine.kv_transfer import kv_channel
from services.worker.engine.kv_transfer.kv_values import HEADER_BYTES
from services.worker.rank_protocol.kv_messages import (
    Compression,
    FetchBlocks,
    FetchResult,
    KVStoreConfig,
    StoreBlock,
    StoreResult,
)
from services.worker.rank_protocol.rank_messages import FrameKind, FrameReader, pack_frame
from shared.kv_hash import data_key, head_field
from tests.kits.engine.kv_moves import HEAD_BYTES, FakeBlocks, client, names, rank, said
from tests.kits.waiting import wait_for
from tests.kits.worker.options import kv_store


def _config(url: str, compression: Compression = "none") -> KVStoreConfig:
    return kv_store(url, compression=compression, ttl_s=90.0)


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("reads", ["none", "zstd"])
def test_what_two_ranks_wrote_other_splits_read(
    redis_url: str, compression: Compression, reads: Compression
) -> None:
    stored = names(20)
    written = 0
    for heads in (range(3), range(3, 6)):
        with rank(_config(redis_url, compression), FakeBlocks(heads)) as writer:
            writer.blocks.fill(seed=1)
            writer.store(stored)
            assert writer.reports.written == b"".join(stored)
            assert not writer.reports.dropped
            written += sum(message.num_bytes for message in writer.reports.stored)
    raw_bytes = 20 * 6 * (HEADER_BYTES + HEAD_BYTES)
    assert written == raw_bytes if compression == "none" else written < 0.9 * raw_bytes
    redis = client(redis_url)
    assert redis.hlen(data_key(stored[0])) == 6
    assert 80 < redis.ttl(data_key(stored[0])) <= 90
    for heads in (range(6), range(2), range(5, 6)):
        with rank(_config(redis_url, reads), FakeBlocks(heads)) as reader:
            fetched = reader.fetch(stored, first=7)
            assert (fetched.count, fetched.missing, fetched.corrupt, fetched.error) == (20, False, b"", "")
            assert fetched.num_bytes == written * len(heads) / 6 or compression == "zstd"
            expected = FakeBlocks(heads)
            expected.fill(seed=1)
            assert np.array_equal(reader.blocks.data[7:27], expected.data[:20])
            assert not reader.blocks.data[:7].any()
            assert not reader.blocks.data[27:].any()


def test_a_rank_whose_heads_a_lower_one_writes_has_nothing_to_do(redis_url: str) -> None:
    stored = names(3)
    with rank(_config(redis_url), FakeBlocks(range(1), writes=range(0))) as second:
        second.store(stored)
        assert second.reports.written == b"".join(stored)
    assert not client(redis_url).exists(*map(data_key, stored))


def _flip(at: int) -> Callable[[bytes, bytes], bytes]:
    return lambda value, _: value[:at] + bytes([value[at] ^ 4]) + value[at + 1 :]


SPOILT = {
    **{
        f"byte {at}": _flip(at)
        for at in (*range(HEADER_BYTES), HEADER_BYTES, 999, HEADER_BYTES + HEAD_BYTES - 1)
    },
    "cut": lambda value, _: value[:-1],
    "empty": lambda value, _: b"",
    "longer": lambda value, _: value + b"\0",
    "of another head or block": lambda _, other: other,
}


@pytest.mark.parametrize("how", SPOILT)
@pytest.mark.parametrize("location", ["head", "block"])
def test_what_is_not_sound_ends_the_fetch_before_it(redis_url: str, how: str, location: str) -> None:
    stored, redis = names(12), client(redis_url)
    with rank(_config(redis_url), FakeBlocks(range(3))) as both:
        both.blocks.fill(seed=2)
        both.store(stored)
        key, field = data_key(stored[9]), head_field(1)
        elsewhere = (key, head_field(2)) if location == "head" else (data_key(stored[3]), field)
        value, other = redis.hget(key, field), redis.hget(*elsewhere)
        assert isinstance(value, bytes)
        assert isinstance(other, bytes)
        redis.hset(key, field.decode(), SPOILT[how](value, other))  # type: ignore[no-untyped-call]
        fetched = both.fetch(stored, first=20)
        assert (fetched.count, fetched.missing, fetched.error) == (9, False, "")
        assert fetched.corrupt == stored[9]
        assert np.array_equal(both.blocks.data[20:29], both.blocks.data[:9])
        assert redis.exists(key), "only the KV state service deletes"
        assert both.fetch(stored[10:], first=40).count == 2, "nothing of it is left on the connection"


def test_a_missing_head_a_missing_block_and_another_type(redis_url: str) -> None:
    stored, redis = names(20), client(redis_url)
    with rank(_config(redis_url), FakeBlocks(range(3))) as both:
        both.store(stored[:18])
        redis.hdel(data_key(stored[17]), head_field(2).decode())
        redis.delete(data_key(stored[15]))
        redis.set(data_key(stored[5]), b"a string", ex=60)
        assert said(both.fetch(stored[16:18])) == {"count": 1, "missing": True}
        assert said(both.fetch(stored[14:18])) == {"count": 1, "missing": True}
        assert said(both.fetch(stored[18:])) == {"missing": True}
        fetched = both.fetch(stored[:10])
        assert fetched.count == 5
        assert "WRONGTYPE" in fetched.error
        both.store(stored[4:7])
        assert both.reports.stored[-1].dropped == stored[5]
        assert "WRONGTYPE" in both.reports.stored[-1].error
        assert said(both.fetch(stored[6:8])) == {"count": 2}, "that was no trouble with the store"


def test_many_fetches_at_once_end_each_for_itself(redis_url: str) -> None:
    """Fetches wait in a queue: none may receive leftovers of the one before, also after a failure."""
    stored, redis = names(40), client(redis_url)
    with rank(_config(redis_url), FakeBlocks(range(3), num_blocks=400)) as both:
        both.blocks.fill(seed=5)
        both.store(stored)
        original = both.blocks.data[:40].copy()
        redis.delete(data_key(stored[7]))
        redis.set(data_key(stored[22]), b"a string", ex=60)
        key, field = data_key(stored[31]), head_field(1)
        value = redis.hget(key, field)
        assert isinstance(value, bytes)
        redis.hset(key, field.decode(), value[:-1])
        both.blocks.data[40:] = 0
        parts = [stored[at : at + 3] for at in range(0, 39, 3)]
        for number, part in enumerate(parts):
            positions = list(range(100 + 3 * number, 100 + 3 * number + len(part)))
            whether_it_is_there = FetchBlocks(fetch_id=-1 - number, blocks=[], names=b"")
            both.mover.fetch(FetchBlocks(fetch_id=1000 + number, blocks=positions, names=b"".join(part)))
            both.mover.fetch(whether_it_is_there)
        both.reports.until(lambda: len(both.reports.fetched) == 2 * len(parts))
        reported = [said(both.reports.fetched[1000 + number]) for number in range(len(parts))]
        assert reported[2] == {"count": 1, "missing": True}
        assert reported[7]["count"] == 1
        assert "WRONGTYPE" in str(reported[7]["error"])
        assert reported[10] == {"count": 1, "corrupt": stored[31]}
        assert [one for number, one in enumerate(reported) if number not in {2, 7, 10}] == [{"count": 3}] * 10
        assert not any(both.reports.fetched[-1 - number].error for number in range(len(parts)))
        for number in range(len(parts)):
            first, count = 3 * number, both.reports.fetched[1000 + number].count
            got = both.blocks.data[100 + first : 100 + first + count]
            assert np.array_equal(got, original[first : first + count])
        assert not both.blocks.data[108].any(), "nothing comes after what is missing"


def test_an_order_that_makes_no_sense_is_answered(redis_url: str) -> None:
    stored = names(4)
    with rank(_config(redis_url), FakeBlocks(range(2), num_blocks=8)) as both:
        both.blocks.fill(seed=3)
        both.store(stored)
        both.mover.fetch(FetchBlocks(fetch_id=99, blocks=[1, 2], names=stored[0]))
        both.reports.until(lambda: 99 in both.reports.fetched)
        assert list(said(both.reports.fetched[99])) == ["error"]
        outside = both.fetch(stored, first=6)
        assert outside.count == 2
        assert "IndexError" in outside.error
        (more,) = names(1)
        both.store([more], first=8)
        assert both.reports.dropped == more
        assert "block 8 was not copied" in both.reports.stored[-1].error
        assert said(both.fetch(stored)) == {"count": 4}


def test_more_than_may_wait_is_dropped_and_every_copy_reported_once(redis_url: str) -> None:
    blocks = FakeBlocks(range(2), num_blocks=400)
    blocks.fill(seed=4)
    each = 2 * (HEADER_BYTES + HEAD_BYTES)
    config = msgspec.structs.replace(_config(redis_url), queue_bytes=8 * each)
    stored = names(400)
    with rank(config, blocks) as writer:
        writer.take(stored)  # far faster than the mover can write them
        writer.reports.copies(400)
        reported = [*_split(writer.reports.written), *_split(writer.reports.dropped)]
        assert sorted(reported) == stored
        assert writer.reports.dropped
        assert any("waiting to be written" in message.error for message in writer.reports.stored)
        for at, name in enumerate(stored):  # what was written is correct although buffers were reused
            if name in _split(writer.reports.written):
                assert writer.fetch([name], first=at).count == 1
    expected = FakeBlocks(range(2), num_blocks=400)
    expected.fill(seed=4)
    assert np.array_equal(blocks.data, expected.data)


def _split(packed: bytes) -> list[bytes]:
    return [packed[at : at + 16] for at in range(0, len(packed), 16)]


def test_the_block_is_free_when_take_returns(redis_url: str) -> None:
    stored = names(30)
    with rank(_config(redis_url), FakeBlocks(range(2))) as both:
        both.blocks.fill(seed=5)
        before = both.blocks.data.copy()
        both.take(stored)
        both.blocks.data[:] = 7
        both.reports.copies(30)
        assert said(both.fetch(stored, first=30)) == {"count": 30}
        assert np.array_equal(both.blocks.data[30:60], before[:30])


def test_several_ranks_write_and_read_at_the_same_time(redis_url: str) -> None:
    stored = [names(15) for _ in range(6)]
    failures: list[object] = []

    def serve(heads: range) -> None:
        with rank(_config(redis_url), FakeBlocks(heads)) as one:
            one.blocks.fill(seed=6)
            before = one.blocks.data[:15].copy()
            for number in stored:
                one.store(number)
                one.blocks.data[15:] = 0
                if said(one.fetch(number, first=20)) != {"count": 15}:
                    failures.append(one.reports.fetched)
                if not np.array_equal(one.blocks.data[20:35], before):
                    failures.append((heads, "other bytes"))

    threads = [threading.Thread(target=serve, args=(heads,)) for heads in (range(2), range(2, 4), range(3))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_the_channel_serves_a_leader_and_ends_with_it(redis_url: str) -> None:
    stored, blocks = names(3), FakeBlocks(range(2))
    blocks.fill(seed=7)
    leader, own = socket.socketpair()
    with leader:
        mover = kv_channel.start(own.detach(), _config(redis_url), blocks)
        mover.copy_out([StoreBlock(at, name) for at, name in enumerate(stored)])
        frames = _frames(leader)
        reported_names = b""
        while len(reported_names) < 16 * 3:
            kind, body = next(frames)
            assert kind is FrameKind.STORED
            reported_names += msgspec.msgpack.decode(body, type=StoreResult).names
        assert reported_names == b"".join(stored)
        frame = pack_frame(FrameKind.FETCH, FetchBlocks(fetch_id=5, blocks=[8, 9, 10], names=reported_names))
        for at in range(len(frame)):  # a frame may arrive in pieces of any size
            leader.send(frame[at : at + 1])
        kind, body = next(frames)
        assert kind is FrameKind.FETCHED
        fetched = msgspec.msgpack.decode(body, type=FetchResult)
        assert (fetched.fetch_id, said(fetched)) == (5, {"count": 3})
        assert np.array_equal(blocks.data[8:11], blocks.data[:3])
        assert _threads() >= {"kv-channel", "kv-reader", "kv-writer"}
    wait_for(lambda: not _threads())


def test_a_leader_that_left_is_not_missed(redis_url: str, capfd: pytest.CaptureFixture[str]) -> None:
    leader, own = socket.socketpair()
    mover = kv_channel.start(own.detach(), _config(redis_url), FakeBlocks(range(2)))
    leader.close()
    mover.copy_out([StoreBlock(at, name) for at, name in enumerate(names(40))])
    wait_for(lambda: not _threads())
    mover.copy_out([StoreBlock(1, names(1)[0])])
    assert capfd.readouterr() == ("", "")


def test_what_is_no_frame_ends_the_channel_and_is_reported(
    redis_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    leader, own = socket.socketpair()
    with leader:
        kv_channel.start(own.detach(), _config(redis_url), FakeBlocks(range(2)))
        leader.sendall(b"\xff" * 64)
        leader.settimeout(5)
        assert leader.recv(1) == b""
    wait_for(lambda: not _threads())
    assert "a frame of 4294967295 bytes" in capfd.readouterr().err


def _frames(sock: socket.socket) -> Iterator[tuple[FrameKind, bytes]]:
    reader = FrameReader()
    while data := sock.recv(1 << 16):
        yield from reader.feed(data)


def _threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("kv-")}
