"""The load generator against a small HTTP server: right answers are measured, wrong ones are counted."""

import asyncio
import json
import math
from collections.abc import Callable
from unittest.mock import Mock

from benchmarks.lib.measuring import percentile
from benchmarks.serving.answers import Judgement, judge_completion, judge_stream
from benchmarks.serving.connection import LoadConnection, LoadTarget, Recorder
from benchmarks.serving.load import Load, LoadFigures
from benchmarks.serving.requests import NumberedRequests
from tests.kits.bench.answers import answering, chunks, completion, http
from tests.kits.bench.long_enough import long_enough

MANY = 10  # right answers, in 0.15 s if no other process has the cores


async def load(
    answer: Callable[[int, bytes], bytes | None], concurrency: int = 2, stream: bool = False
) -> LoadFigures:
    """Figures of more than `MANY` requests to a server that gives these answers."""

    async def measure(seconds: float) -> LoadFigures:
        async with answering(answer) as port:
            made = Load(
                url=f"http://127.0.0.1:{port}",
                model="demo",
                tokens=16,
                stream=stream,
                concurrency=concurrency,
            )
            await made.begin(0.0)
            await made.measure(seconds)
            return await made.finish()

    figures = await long_enough(measure, 0.15, lambda found: found.requests > MANY)
    assert figures.requests > MANY
    return figures


async def test_right_answers_are_measured_and_all_requests_differ() -> None:
    seen: list[str] = []

    def answer(_: int, body: bytes) -> bytes:
        seen.append(json.loads(body)["messages"][0]["content"])
        return http(completion())

    figures = await load(answer)
    assert figures.errors == 0
    assert figures.requests_per_s == figures.requests / figures.seconds
    assert 0 < figures.p50_ms <= figures.p99_ms
    assert len(set(seen)) == len(seen)


async def test_streamed_answers_in_pieces() -> None:
    body = chunks()
    pieces = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:50], body[50:])) + b"0\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    figures = await load(lambda *_: head + pieces, stream=True)
    assert (figures.errors, figures.error_kinds) == (0, {})


async def test_the_first_text_counts_and_not_the_head() -> None:
    recorder = Recorder()
    recorder.measuring = True
    requests = NumberedRequests(str.encode)
    connection = LoadConnection(LoadTarget("", 0, 16, stream=True), requests, recorder)
    connection.connection_made(Mock())
    recorder.stopping = True
    head, role, rest = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n", *chunks().partition(b"}]}\n\n")[::2]
    connection.data_received(head % len(chunks()) + role + b"}]}\n\n")
    await asyncio.sleep(0.02)
    connection.data_received(rest)
    assert recorder.problems == {}
    assert recorder.first_texts_s[0] >= 0.02


async def test_wrong_answers_are_errors_and_the_load_goes_on() -> None:
    replies = {
        0: http(b"full", "503 Service Unavailable"),
        1: http(completion(15)),
        2: None,
        3: b"nonsense\r\n\r\n",
    }
    figures = await load(lambda n, _: replies.get(n, http(completion())), concurrency=1)
    assert figures.errors == 4
    assert {kind.split(":")[0] for kind in figures.error_kinds} == {
        "status 503",
        "15 completion tokens instead of 16",
        "connection closed before the answer",
        "not HTTP",
    }


async def test_a_server_that_closes_after_each_answer_makes_no_errors() -> None:
    figures = await load(lambda *_: http(completion(), extra="connection: close\r\n"))
    assert figures.errors == 0


def test_answers_are_judged() -> None:
    assert judge_completion(200, completion(), 16) == Judgement()
    assert judge_completion(200, completion(content=""), 16).problem == "empty content"
    assert "not a chat completion" in judge_completion(200, b'{"choices": 3}', 16).problem
    assert "status 429: slow down" in judge_completion(429, b"slow down", 16).problem
    assert judge_stream(200, chunks(), 16) == Judgement(events=1)
    assert judge_stream(200, chunks().replace(b"\n", b"\r\n"), 16) == Judgement(events=1)
    assert judge_stream(200, chunks(tokens=3), 16).problem == "3 completion tokens instead of 16"
    assert judge_stream(200, chunks(done=False), 16).problem == "no [DONE] at the end"
    assert judge_stream(200, chunks(text=""), 16).problem == "empty content"
    assert judge_stream(200, chunks(finish=None), 16).problem == "no finish reason"
    assert "no completion chunk" in judge_stream(200, b"data: {\n\ndata: [DONE]\n\n", 16).problem


def test_percentiles_are_nearest_rank() -> None:
    values = [float(n) for n in range(1, 101)]
    assert percentile(values, 0.50) == 50
    assert percentile(values, 0.99) == 99
    assert percentile([7.0], 0.99) == 7
    assert math.isnan(percentile([], 0.5))
