"""A KV store that is killed, emptied, stalled, full or no Redis: the mover reports errors and recovers."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from services.worker.engine.kv_transfer.kv_link import ConnectionLost, StoreLink, StoreUnreachable
from services.worker.engine.kv_transfer.kv_values import HEADER_BYTES
from services.worker.rank_protocol.kv_messages import FetchBlocks, KVStoreConfig
from shared.kv_hash import data_key
from tests.kits.engine.kv_moves import HEAD_BYTES, FakeBlocks, Rank, client, names, rank, said, server
from tests.kits.servers import RedisServer
from tests.kits.waiting import wait_for
from tests.kits.worker.options import kv_store

TIMEOUT_S = 0.3


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.stop(kill=True)


def _config(url: str, timeout_s: float = TIMEOUT_S) -> KVStoreConfig:
    return kv_store(url, timeout_s=timeout_s)


def _works_again(one: Rank) -> None:
    """Waits until the circuits of both threads are closed, then asserts that storing and fetching work."""
    wait_for(lambda: not _drops(one) and not said(one.fetch([])))
    stored = names(5)
    one.store(stored)
    assert one.reports.stored[-1].names.endswith(stored[-1])
    assert said(one.fetch(stored)) == {"count": 5}


def _drops(one: Rank) -> bool:
    one.store(names(1))
    return bool(one.reports.stored[-1].dropped)


def test_killed_and_back_empty(redis: RedisServer) -> None:
    stored, limit_s = names(10), 2.0
    with rank(_config(redis.url, limit_s), FakeBlocks(range(2))) as one:
        one.store(stored)
        redis.stop(kill=True)
        began = time.monotonic()
        for _ in range(20):
            gone = one.fetch(stored)
            assert (gone.count, gone.missing) == (0, False)
            assert "the KV store is away" in gone.error
            assert _drops(one)
            assert "the KV store is away" in one.reports.stored[-1].error
        assert time.monotonic() - began < 20 * limit_s, "40 exchanges waited for it"
        redis.start()
        _works_again(one)
        assert said(one.fetch(stored)) == {"missing": True}


def test_a_restart_between_two_exchanges_costs_nothing(redis: RedisServer) -> None:
    stored = names(10)
    with rank(_config(redis.url), FakeBlocks(range(2))) as one:
        one.store(names(1))
        one.fetch(stored)
        redis.stop()
        redis.start()
        one.store(stored)
        assert not one.reports.dropped
        assert said(one.fetch(stored)) == {"count": 10}


def test_killed_amid_writes_and_reads(redis: RedisServer) -> None:
    blocks = FakeBlocks(range(4), head_bytes=2**17, num_blocks=64)
    stored = names(64)
    with rank(_config(redis.url), blocks) as one:
        one.store(stored)
        again = names(64)
        for fetch_id in range(100, 130):
            one.mover.fetch(FetchBlocks(fetch_id=fetch_id, blocks=list(range(64)), names=b"".join(stored)))
        one.take(again)
        one.reports.until(lambda: 101 in one.reports.fetched)
        redis.stop(kill=True)
        one.reports.copies(128)
        one.reports.until(lambda: len(one.reports.fetched) == 30)
        assert said(one.reports.fetched[100]) == {"count": 64}
        assert one.reports.fetched[129].error
        assert sorted(one.reports.written + one.reports.dropped) == sorted(b"".join(stored + again))
        redis.start()
        _works_again(one)


def test_one_that_stalls_is_given_up_after_three_exchanges(redis: RedisServer) -> None:
    stored, limit_s = names(3), 1.0
    with rank(_config(redis.url, limit_s), FakeBlocks(range(2))) as one:
        one.store(stored)
        one.fetch(stored)
        client(redis.url).client_pause(6000)
        seconds = []
        for _ in range(6):
            began = time.monotonic()
            fetched = one.fetch(stored)
            seconds.append(time.monotonic() - began)
            assert f"did not answer within {limit_s:g} s" in fetched.error
        assert sum(seconds[:3]) >= 3 * limit_s
        assert sum(seconds[3:]) < limit_s, "then no sequence waits for it"
        assert _drops(one)
        _works_again(one)


def test_one_that_is_full_refuses_writes_and_goes_on_reading(redis: RedisServer) -> None:
    stored, store = names(3), client(redis.url)
    with rank(_config(redis.url), FakeBlocks(range(2))) as one:
        one.store(stored)
        store.config_set("maxmemory", "1")
        assert _drops(one)
        assert (
            "refuses writes: command not allowed when used memory > 'maxmemory'"
            in one.reports.stored[-1].error
        )
        assert said(one.fetch(stored)) == {"count": 3}
        assert store.dbsize() == 3, "nothing half done"
        store.config_set("maxmemory", "0")
        _works_again(one)


def test_a_key_never_stays_without_a_time_to_live(redis: RedisServer) -> None:
    """The connection ends at each point between the last bytes of a block and those of the last command."""
    store, outcomes = client(redis.url), set()
    block_bytes = 2 * (HEADER_BYTES + HEAD_BYTES)
    for cut in range(block_bytes, block_bytes + 500, 20):

        def answer(sock: socket.socket, cut: int = cut) -> None:
            _relay(sock, redis.port, cut)

        with server(answer) as url, rank(_config(url), FakeBlocks(range(2))) as one:
            outcomes.add(_drops(one))
        ttls = [store.ttl(key) for key in store.scan_iter()]
        assert all(ttl > 0 for ttl in ttls), cut
    assert outcomes == {True, False}


def _relay(sock: socket.socket, port: int, limit: int) -> None:
    """Relays the first `limit` bytes to Redis and all its answers, then closes both connections."""
    with sock, socket.create_connection(("127.0.0.1", port)) as behind:
        passed = 0
        sock.settimeout(0.05)
        behind.settimeout(0.05)
        while passed < limit:
            for source, target in ((sock, behind), (behind, sock)):
                try:
                    data = source.recv(limit - passed if source is sock else 65536)
                except TimeoutError:
                    continue
                if not data:
                    return
                passed += len(data) if source is sock else 0
                target.sendall(data)


def test_one_that_answers_by_drops_does_not_hold_a_fetch() -> None:
    def drip(sock: socket.socket) -> None:
        sock.recv(65536)
        for byte in b"*2\r\n$9999\r\n" + b"x" * 9999:
            sock.sendall(bytes([byte]))
            time.sleep(0.02)

    with server(drip) as url, rank(_config(url), FakeBlocks(range(2))) as one:
        began = time.monotonic()
        assert "did not answer" in one.fetch(names(2)).error
        assert time.monotonic() - began < 20, "all drops would take 200 s"


def test_a_fetch_from_a_slow_one_ends_with_what_it_has(redis: RedisServer) -> None:
    """Each exchange keeps its time limit, but all of them together would delay a request by seconds."""
    limit_s = 1.2  # long enough for a busy machine
    slow = server(lambda sock: _slowly(sock, redis.port, limit_s / 6))
    blocks = FakeBlocks(range(2), num_blocks=600)
    with slow as url, rank(msgspec.structs.replace(_config(url), timeout_s=limit_s), blocks) as one:
        stored = names(600)
        one.store(stored[:1])  # connects
        one.store(stored[1:])
        assert said(one.fetch(stored[:1])) == {"count": 1}
        began = time.monotonic()
        fetched = one.fetch(stored)
        assert "the KV store is slow" in fetched.error
        assert 8 <= fetched.count < 600
        assert time.monotonic() - began < 8 * limit_s
        assert said(one.fetch(stored[:2])) == {"count": 2}, "that was no failure"


def _slowly(sock: socket.socket, port: int, seconds: float) -> None:
    """Relays everything between the client and Redis; delays each request for blocks by `seconds`."""
    with sock, socket.create_connection(("127.0.0.1", port)) as behind:
        pump = threading.Thread(target=_pump, args=(behind, sock), daemon=True)
        pump.start()
        while data := sock.recv(2**20):
            if b"HMGET" in data:
                time.sleep(seconds)
            behind.sendall(data)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(2**20):
            target.sendall(data)


def test_one_that_is_no_redis_is_distinguished() -> None:
    def web(sock: socket.socket) -> None:
        sock.recv(65536)
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with server(web) as url, rank(_config(url), FakeBlocks(range(2))) as one:
        assert "the KV store is away: Protocol error" in one.fetch(names(2)).error
        assert _drops(one)


def test_closing_waits_neither_for_the_store_nor_for_the_queue() -> None:
    silent = threading.Event()
    with server(lambda sock: _ignore(sock, silent)) as url:
        one = Rank(kv_store(url, timeout_s=10.0), FakeBlocks(range(2)))
        one.take(names(20))
        one.mover.fetch(FetchBlocks(fetch_id=1, blocks=[1], names=names(1)[0]))
        time.sleep(0.2)
        began = time.monotonic()
        one.mover.close()
        assert time.monotonic() - began < 5, "it waited for the store, which has 10 s"
        wait_for(lambda: not [t for t in threading.enumerate() if t.name in ("kv-writer", "kv-reader")])
        one.mover.close()
        silent.set()


def _ignore(sock: socket.socket, end: threading.Event) -> None:
    with sock:
        end.wait(20)


def test_a_link_says_what_is_wrong_and_when_to_ask_again(redis: RedisServer) -> None:
    link = StoreLink(redis.url, TIMEOUT_S)
    link.send([("PING",)])
    assert link.receive() == b"PONG"
    redis.stop(kill=True)
    link.send([("PING",)])
    with pytest.raises(ConnectionLost):
        link.receive()
    assert not link.away, "it may have restarted"
    with pytest.raises(StoreUnreachable, match="Connection refused"):
        link.send([("PING",)])
    assert "Connection refused" in link.away
    assert (link.probe_in_s or 0.0) > 0
    redis.start()
    link.probe()
    assert not link.away
    link.close()


def test_blocks_are_named_in_the_store_as_the_contract_says(redis: RedisServer) -> None:
    stored = names(2)
    with rank(_config(redis.url), FakeBlocks(range(3, 5))) as one:
        one.store(stored)
    store = client(redis.url)
    assert sorted(store.keys()) == [data_key(name) for name in stored]
    assert sorted(store.hkeys(data_key(stored[0]))) == [b"3", b"4"]
