"""Files and batches with OpenAI's client, from the upload to the output file."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from tests.kits.gateway.batch_stack import BatchGateway, batch_gateway, chat_lines, null_leader
from tests.kits.servers import NatsServer
from tests.kits.waiting import PATIENCE_S

ENDED = {"completed", "failed", "expired", "cancelled"}


async def submitted(client: AsyncOpenAI, lines: bytes, **options: Any) -> Any:
    """A batch of these lines."""
    file = await client.files.create(file=("in.jsonl", lines), purpose="batch")
    return await client.batches.create(
        input_file_id=file.id,
        endpoint=options.pop("endpoint", "/v1/chat/completions"),
        completion_window=options.pop("completion_window", "24h"),
        **options,
    )


async def when(client: AsyncOpenAI, batch_id: str, holds: Callable[[Any], bool]) -> Any:
    """The batch as soon as that holds of it."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            batch = await client.batches.retrieve(batch_id)
            if holds(batch):
                return batch
            await asyncio.sleep(0.05)


async def ended(client: AsyncOpenAI, batch_id: str) -> Any:
    """The batch when it has ended."""
    return await when(client, batch_id, lambda batch: batch.status in ENDED)


async def lines_of(client: AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    """The lines of an output file or error file."""
    if not file_id:
        return []
    content = await client.files.content(file_id)
    return [json.loads(line) for line in content.text.splitlines()]


async def test_every_request_has_its_result_once(gateway: BatchGateway) -> None:
    client = gateway.client()
    batch = await submitted(client, chat_lines(100), metadata={"what": "test"})
    assert batch.status == "validating"
    assert batch.metadata == {"what": "test"}
    done = await ended(client, batch.id)
    assert done.status == "completed", done
    assert (done.request_counts.total, done.request_counts.completed) == (100, 100)
    assert done.model == "demo"
    lines = await lines_of(client, done.output_file_id)
    assert sorted(line["custom_id"] for line in lines) == sorted(f"line-{n}" for n in range(100))
    assert {line["response"]["status_code"] for line in lines} == {200}
    assert lines[0]["response"]["body"]["object"] == "chat.completion"
    assert done.error_file_id is None
    assert [one.id for one in (await client.batches.list()).data] == [batch.id]
    assert gateway.metric("ryz_gateway_batch_lines_total", outcome="completed") == 100


async def test_files(gateway: BatchGateway) -> None:
    client = gateway.client()
    text = b"x" * 300_000 + b"\r\n--boundary\r\n"
    file = await client.files.create(file=("a \u00fc.txt", text), purpose="user_data")
    assert (file.bytes, file.filename, file.purpose) == (len(text), "a \u00fc.txt", "user_data")
    assert (await client.files.content(file.id)).content == text
    assert [one.id for one in (await client.files.list()).data] == [file.id]
    assert (await client.files.list(purpose="batch")).data == []
    assert (await client.files.retrieve(file.id)).id == file.id
    assert (await client.files.delete(file.id)).deleted
    with pytest.raises(openai.NotFoundError):
        await client.files.retrieve(file.id)
    with pytest.raises(openai.BadRequestError, match="purpose"):
        await client.files.create(file=b"x", purpose="nonsense")


async def test_wrong_lines(gateway: BatchGateway) -> None:
    client = gateway.client()
    lines = chat_lines(2) + b"no json\n" + chat_lines(1) + b'{"custom_id": "a"}\n'
    done = await ended(client, (await submitted(client, lines)).id)
    assert done.status == "failed"
    assert [(fault.code, fault.line) for fault in done.errors.data] == [
        ("invalid_json_line", 3),
        ("duplicate_custom_id", 4),
        ("invalid_line", 5),
    ]


async def test_lines_tell_what_was_left_out(gateway: BatchGateway) -> None:
    client = gateway.client()
    more = chat_lines(1, first=5).replace(b'"max_tokens"', b'"prediction": {}, "max_tokens"')
    done = await ended(client, (await submitted(client, chat_lines(1) + more)).id)
    assert done.request_counts.completed == 2
    reported = {
        one["custom_id"]: one["response"].get("ignored")
        for one in await lines_of(client, done.output_file_id)
    }
    assert reported == {"line-0": None, "line-5": "prediction (a hint for speed)"}


async def test_requests_that_fail_go_to_the_error_file(gateway: BatchGateway) -> None:
    client = gateway.client()
    wrong = chat_lines(1, first=7).replace(b'"max_tokens": 4', b'"max_tokens": -4')
    stream = chat_lines(1, first=8).replace(b'"max_tokens"', b'"stream": true, "max_tokens"')
    long = chat_lines(1, first=9).replace(b"number 9", b"x" * 600_000)
    done = await ended(client, (await submitted(client, chat_lines(2) + wrong + stream + long)).id)
    assert (done.request_counts.completed, done.request_counts.failed) == (2, 3)
    failed = {line["custom_id"]: line for line in await lines_of(client, done.error_file_id)}
    assert failed["line-7"]["response"]["status_code"] == 400
    assert failed["line-7"]["response"]["body"]["error"]["param"] == "max_tokens"
    assert failed["line-8"]["error"]["code"] == "invalid_request"
    assert failed["line-9"]["error"]["code"] == "request_too_large"


async def test_pause_resume_cancel(broker: NatsServer, tmp_path: Path) -> None:
    async with null_leader(broker.url, delay_s=0.01), batch_gateway(broker.url, tmp_path / "f") as gateway:
        client = gateway.client()
        batch = await submitted(client, chat_lines(400))
        await when(client, batch.id, lambda batch: batch.request_counts.completed > 0)
        await client.post(f"/batches/{batch.id}/pause", cast_to=object)
        held = await client.batches.retrieve(batch.id)
        for _ in range(100):  # what was begun ends, however slow the machine is
            await asyncio.sleep(0.5)
            before, held = held, await client.batches.retrieve(batch.id)
            if held.request_counts == before.request_counts:
                break
        assert held.request_counts.completed < 400
        await client.post(f"/batches/{batch.id}/resume", cast_to=object)
        await when(client, batch.id, lambda batch: batch.request_counts != held.request_counts)
        assert (await client.batches.cancel(batch.id)).status == "cancelling"
        done = await ended(client, batch.id)
        assert done.status == "cancelled"
        output = await lines_of(client, done.output_file_id)
        errors = await lines_of(client, done.error_file_id)
        assert sorted(line["custom_id"] for line in output + errors) == sorted(
            f"line-{n}" for n in range(400)
        )
        assert {line["error"]["code"] for line in errors} == {"batch_cancelled"}
