"""Gateways go, time goes by: each request has one result, and nothing is left in the streams."""

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest

from shared import streams
from shared.bus.jetstream.jetstream import JetStream
from shared.messages.base import BACKGROUND_PRIORITY
from tests.integration.gateway.batches.test_batches_openai import ended, lines_of, submitted, when
from tests.kits.gateway.batch_stack import BatchGateway, batch_gateway, chat_lines, null_leader
from tests.kits.servers import NatsServer
from tests.kits.waiting import until


async def test_another_gateway_goes_on(broker: NatsServer, tmp_path: Path) -> None:
    """The first one stops in the middle of a batch; the second one had nothing to do with it."""
    folder = tmp_path / "files"
    async with null_leader(broker.url, delay_s=0.005) as seen:
        async with batch_gateway(broker.url, folder, instance_id="one", files_store="nats") as first:
            batch = await submitted(first.client(), chat_lines(200))
            await when(first.client(), batch.id, lambda batch: batch.request_counts.completed > 20)
        async with batch_gateway(broker.url, folder, instance_id="two", files_store="nats") as second:
            client = second.client()
            done = await ended(client, batch.id)
            assert done.status == "completed"
            lines = await lines_of(client, done.output_file_id)
            assert sorted(line["custom_id"] for line in lines) == sorted(f"line-{n}" for n in range(200))
            assert 0 < second.metric("ryz_gateway_batch_lines_total", outcome="completed") < 200
            jetstream = JetStream(second.bus)
            await when(client, batch.id, lambda _: True)
            for stream, pattern in (
                (streams.LINES_STREAM, streams.batch_line("*", "*")),
                (streams.RESULTS_STREAM, streams.batch_result("*", "*")),
            ):

                async def is_empty(stream: str = stream, pattern: str = pattern) -> bool:
                    return not await jetstream.read(stream, pattern, 0)

                await until(is_empty, longest_s=0.05)
            await jetstream.stop()
    assert {request.priority for request in seen} == {BACKGROUND_PRIORITY}
    assert {request.session for request in seen} == {None}
    by_text = {str(request.messages): request.sampling.seed for request in seen}
    assert len(set(by_text.values())) == 200
    assert all(by_text[str(request.messages)] == request.sampling.seed for request in seen)


async def test_lines_that_the_queue_lost_run_all_the_same(broker: NatsServer, tmp_path: Path) -> None:
    async with null_leader(broker.url), batch_gateway(broker.url, tmp_path / "f") as gateway:
        client = gateway.client()
        batch = await submitted(client, chat_lines(60))
        await client.post(f"/batches/{batch.id}/pause", cast_to=object)
        await when(client, batch.id, lambda batch: batch.status == "in_progress")
        await asyncio.sleep(0.5)
        jetstream = JetStream(gateway.bus)
        await jetstream.purge(streams.LINES_STREAM, streams.batch_line(batch.id, "*"))
        await client.post(f"/batches/{batch.id}/resume", cast_to=object)
        done = await ended(client, batch.id)
        assert done.request_counts.completed == 60
        await jetstream.stop()


async def test_what_is_not_done_in_time_expires(broker: NatsServer, tmp_path: Path) -> None:
    async with batch_gateway(broker.url, tmp_path / "f") as gateway:  # there is no leader
        client = gateway.client()
        done = await ended(client, (await submitted(client, chat_lines(5), completion_window="1s")).id)
        assert done.status == "expired"
        errors = await lines_of(client, done.error_file_id)
        assert [line["error"]["code"] for line in errors] == ["batch_expired"] * 5
        assert done.request_counts.failed == 5


async def test_the_same_line_has_the_same_answer(gateway: BatchGateway) -> None:
    """Other transports have what they had; embeddings and responses run as well."""
    client = gateway.client()
    lines = []
    bodies: list[dict[str, Any]] = [
        {"prompt": ["a", "b"], "max_tokens": 3},
        {"prompt": "c", "max_tokens": 3, "n": 2, "logprobs": 1},
    ]
    for number, body in enumerate(bodies):
        url = "/v1/completions"
        request = {"custom_id": str(number), "method": "POST", "url": url, "body": {"model": "demo"} | body}
        lines.append(json.dumps(request))
    batch = await submitted(client, "\n".join(lines).encode(), endpoint="/v1/completions")
    done = await ended(client, batch.id)
    found = {
        line["custom_id"]: line["response"]["body"] for line in await lines_of(client, done.output_file_id)
    }
    assert [len(found[name]["choices"]) for name in ("0", "1")] == [2, 2]
    respond = {
        "custom_id": "r",
        "method": "POST",
        "url": "/v1/responses",
        "body": {"model": "demo", "input": "x"},
    }
    batch = await submitted(client, json.dumps(respond).encode(), endpoint="/v1/responses")
    (line,) = await lines_of(client, (await ended(client, batch.id)).output_file_id)
    assert line["response"]["body"]["store"] is False


async def test_limits_and_tenants(broker: NatsServer, tmp_path: Path) -> None:
    limits: dict[str, Any] = {
        "files_max_per_tenant": 2,
        "batch_max_open": 1,
        "batch_max_lines": 3,
        "file_max_bytes": 2**20,
    }
    keys: dict[str, Any] = {"api_keys": "key-of-one:one,key-of-two:two"}
    async with batch_gateway(broker.url, tmp_path / "f", **limits, **keys) as gateway:
        one, two = gateway.client("key-of-one"), gateway.client("key-of-two")
        batch = await submitted(one, chat_lines(2))
        with pytest.raises(openai.RateLimitError, match="may have 1: wait"):
            await submitted(one, chat_lines(2))
        with pytest.raises(openai.RateLimitError, match="RYZ_FILES_MAX_PER_TENANT"):
            await one.files.create(file=b"x", purpose="batch")
        with pytest.raises(openai.NotFoundError):
            await two.batches.retrieve(batch.id)
        with pytest.raises(openai.NotFoundError):
            await two.files.content(batch.input_file_id)
        assert (await two.batches.list()).data == []
        with pytest.raises(openai.APIStatusError, match="RYZ_FILE_MAX_BYTES"):
            await two.files.create(file=b"x" * (2**20 + 1), purpose="batch")
        many = await ended(two, (await submitted(two, chat_lines(4))).id)
        assert many.errors.data[0].code == "too_many_requests"


async def test_without_jetstream_only_batches_are_refused(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    server.start()
    try:
        async with batch_gateway(server.url, tmp_path / "f") as gateway:
            client = gateway.client()
            with pytest.raises(openai.InternalServerError, match="store_dir"):
                await submitted(client, chat_lines(1))
            assert len((await client.files.list()).data) == 1
            for batch_id in ("", "batch_0123456789abcdef01234567"):
                with pytest.raises(openai.InternalServerError, match="store_dir") as refused:
                    await (client.batches.retrieve(batch_id) if batch_id else client.batches.list())
                assert refused.value.status_code == 503
                assert refused.value.response.headers["x-ryz-reason"] == "no_jetstream"
    finally:
        server.stop()
