"""`ryz bench engine --http`: reading of streams, arithmetic of its figures, and a run with a whole stack."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engine import engine as bench
from benchmarks.engine.http_row import StreamRun, http_figures
from benchmarks.engine_plans import EnginePlan
from benchmarks.lib.cpu import CpuMeter
from benchmarks.lib.measuring import BenchError
from benchmarks.lib.sse import StreamedAnswer, StreamUsage
from benchmarks.lib.streams import stream_all
from benchmarks.models.make_model import make_model
from benchmarks.models.shapes import SHAPES
from cli.bench.engine.bench_engine import show
from cli.bench.own_stack import own_stack
from tests.kits.bench.reports import REPORT, known_bandwidth

Pieces = list[bytes]


def event(text: str = "a", finish: str | None = None) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": text, "finish_reason": finish}]}).encode() + b"\n\n"


def usage(tokens: int) -> bytes:
    counted = {"choices": [], "usage": {"completion_tokens": tokens}}
    return b"data: " + json.dumps(counted).encode() + b"\n\ndata: [DONE]\n\n"


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
GOOD = [HEAD, chunked(event()), chunked(event() + event("b", "length")), chunked(usage(3)) + END]


@asynccontextmanager
async def serving(
    answer: Callable[[dict[str, Any]], Pieces], gap_s: float = 0.02, at_once: int = 1
) -> AsyncIterator[str]:
    """A server that answers each request with pieces, `gap_s` apart, and then closes the connection.

    The first answers begin when `at_once` requests are there.
    """
    handlers: list[asyncio.Task[None] | None] = []
    all_there = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.append(asyncio.current_task())
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        pieces = answer(json.loads(await reader.readexactly(length)))
        if len(handlers) == at_once:
            all_there.set()
        await all_there.wait()
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(gap_s)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            await asyncio.gather(*filter(None, handlers), return_exceptions=True)


async def streamed(pieces: Pieces, limit_s: float = 10.0) -> StreamedAnswer:
    async with serving(lambda _: pieces) as url:
        (found,), _ = await asyncio.to_thread(stream_all, url, "m", [[1, 2]], 3, limit_s)
    return found


async def test_streams_run_side_by_side_and_keep_their_times() -> None:
    gap_s = 0.3  # a reader that waits for a core is late by less
    bodies: list[dict[str, Any]] = []

    def answer(body: dict[str, Any]) -> Pieces:
        bodies.append(body)
        return GOOD

    # one after the other would wait for the other's answer without end
    async with serving(answer, gap_s, at_once=2) as url:
        found, used_s = await asyncio.to_thread(stream_all, url, "m", [[1], [2, 3]], 3, 10.0)
    assert sorted(body["prompt"] for body in bodies) == [[1], [2, 3]]
    assert all(body["stream"] and body["ignore_eos"] and body["max_tokens"] == 3 for body in bodies)
    for stream in found:
        first, second, third = stream.times
        assert stream.sent < first < second == third == stream.ended
        assert second - first == pytest.approx(gap_s, abs=0.9 * gap_s)
        assert stream.tokens == 3
    assert 0 < used_s < 1


async def test_an_event_in_two_packets_has_the_time_of_the_second() -> None:
    one = chunked(event())
    found = await streamed([HEAD, one[:20], one[20:], *GOOD[2:]])
    assert found.times[0] - found.sent > 0.03


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([b"HTTP/1.1 503 Busy\r\ncontent-length: 5\r\n\r\nlater"], "status 503: later"),
        ([], "status 0"),
        ([b"SMTP ready\r\n\r\n"], "not HTTP"),
        (GOOD[:-1], r"before its \[DONE\]"),
        ([HEAD, chunked(event()), END], r"before its \[DONE\]: {"),
        ([HEAD, chunked(event("a", "length")), chunked(usage(2)) + END], "2 tokens instead of 3"),
        ([HEAD, chunked(b'data: {"choices": 1}\n\n'), chunked(usage(3)) + END], "no completion chunk"),
    ],
)
async def test_what_is_not_a_right_answer_gives_no_figure(pieces: Pieces, message: str) -> None:
    with pytest.raises(BenchError, match=message):
        await streamed(pieces)


async def test_answers_that_do_not_come_and_servers_that_do_not_listen_are_errors() -> None:
    with pytest.raises(BenchError, match=r"1 answers were not complete within 0\.01 s"):
        await streamed(GOOD, limit_s=0.01)
    with pytest.raises(BenchError, match=r"the connection to http://127\.0\.0\.1:1 broke"):
        stream_all("http://127.0.0.1:1", "m", [[1]], 3, 1.0)


def stream(first: float, step: float, count: int, tokens: int) -> StreamedAnswer:
    times = [first + index * step for index in range(count)]
    return StreamedAnswer(0.0, times, times[-1], StreamUsage(tokens))


def test_rates_count_while_all_streams_decode() -> None:
    # the window is 1.0 to 2.0: ten tokens of the first stream, five pieces of two tokens of the second
    run = StreamRun([stream(0.5, 0.1, 16, 16), stream(1.0, 0.2, 8, 16)], {"gateway": 0.064})
    assert run.window() == (1.0, 2.0)
    figures = http_figures([run], engine_rate=25.0)
    assert figures["decode_tokens_per_s"] == pytest.approx(20.0)
    assert figures["share_of_engine"] == pytest.approx(0.8)
    assert figures["ttft_p50_ms"] == 500.0
    assert (figures["itl_p50_ms"], figures["itl_p99_ms"]) == (pytest.approx(100.0), pytest.approx(200.0))
    assert figures["cpu_ms_per_token"] == {"gateway": 2.0}


def test_streams_that_never_decode_together_give_no_figure() -> None:
    apart = StreamRun([stream(0.0, 0.1, 3, 3), stream(1.0, 0.1, 3, 3)], {})
    with pytest.raises(BenchError, match="ask for more --tokens"):
        http_figures([apart], 1.0)


def test_a_process_may_be_counted_without_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, bool]] = []

    def spent(pid: int, with_children: bool) -> float:
        asked.append((pid, with_children))
        return float(len(asked))

    monkeypatch.setattr("benchmarks.lib.cpu.spent_s", spent)
    meter = CpuMeter({"group": 7, "leader": 7}, alone={"leader"})
    meter.start()
    assert meter.read() == {"group": 2.0, "leader": 2.0}
    assert asked == [(7, True), (7, False)] * 2


async def test_a_row_has_the_same_through_a_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_model(tmp_path, SHAPES["tiny"])
    monkeypatch.setattr(bench, "measure_bandwidth", known_bandwidth)
    seen: list[str] = []
    plan = EnginePlan(
        model=tmp_path, threads=1, batches=[2], prompt=20, tokens=16, repeats=1, kernels="plain", http=True
    )
    report = await bench.measure(plan, own_stack, seen.append)
    assert len(seen) == plan.num_steps()
    (row,) = report["rows"]
    figures = row["http"]
    assert figures["decode_tokens_per_s"] > 0
    http, own = figures["decode_tokens_per_s"], row["decode_tokens_per_s"]
    rounding = 0.00005 + http / own * 0.05 * (1 / http + 1 / own)  # rounding of the share and of both rates
    assert abs(figures["share_of_engine"] - http / own) <= rounding * 1.01
    assert figures["ttft_p50_ms"] > 0 <= figures["itl_p50_ms"] <= figures["itl_p99_ms"]
    used = figures["cpu_ms_per_token"]
    assert set(used) == {
        "nats",
        "redis",
        "redis-kv",
        "kvstate",
        "router",
        "router-2",
        "gateway",
        "leader",
        "ranks",
        "client",
    }
    assert used["ranks"] >= 0 < used["client"]
    facts = {
        "machine": {"cpu": "c", "usable_cores": 2, "memory_gib": 4, "load_average_1m": 0.1},
        "commit": "c",
    }
    show({**REPORT, **facts, "rows": [{**REPORT["rows"][0], "http": figures}]})
    assert "through HTTP" in capsys.readouterr().out
