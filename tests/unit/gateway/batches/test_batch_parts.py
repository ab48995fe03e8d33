"""Lines, room, records, pages and forms, without a broker."""

import json
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, cast

import pytest
from msgspec.structs import replace

from services.gateway.resources.batches.group_loads import AT_ONCE, free_room
from services.gateway.resources.batches.input_lines import MAX_FAULTS, LineCheck, LineTooLong, lines_of
from services.gateway.resources.batches.log import BatchLog
from services.gateway.resources.batches.record import (
    BatchRecord,
    answered,
    cancelled,
    claimed,
    not_answered,
    paused,
)
from services.gateway.resources.batches.service import window_s
from services.gateway.resources.batches.streams import BatchParts, BatchRules, BatchStreams
from services.gateway.resources.files.tenants import NewFile, TenantFiles
from services.gateway.transports.http.list_pages import page_of
from services.gateway.transports.http.upload import FileForm
from shared.bus.jetstream.jetstream import JetStream
from shared.errors import InvalidRequest
from shared.messages import Limits, Load

RECORD = BatchRecord(
    batch_id="batch_1", tenant="t", endpoint="/v1/completions", input_file_id="file-1",
    completion_window="1h", created_s=10, expires_s=3610,
)  # fmt: skip
LINE = '{"custom_id": "%s", "method": "POST", "url": "/v1/completions", "body": {"model": "m"}}'


async def in_parts(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
async def test_lines_are_the_same_however_they_come(size: int) -> None:
    data = b"one\r\n\n two \n\nthree"
    found = [(line.number, line.raw.strip()) async for line in lines_of(in_parts(data, size))]
    assert found == [(1, b"one"), (3, b"two"), (5, b"three")]


async def test_a_line_without_end_is_refused() -> None:
    with pytest.raises(LineTooLong, match="line 2"):
        [line async for line in lines_of(in_parts(b"x\n" + b"y" * (9 * 2**20), 2**20))]


async def checked(*lines: str, most: int = 100) -> list[str]:
    check = LineCheck("/v1/completions", most)
    async for line in lines_of(in_parts("\n".join(lines).encode(), 50)):
        check.add(line)
    return [f"{fault.line}:{fault.code}" for fault in check.end()]


async def test_what_is_wrong_with_a_file() -> None:
    good = LINE % "a"
    assert await checked(good) == []
    assert await checked() == ["0:empty_file"]
    assert await checked(good, good) == ["2:duplicate_custom_id"]
    assert await checked(good, "[1]", "{x", '{"custom_id": 1}', LINE % "\\ud800") == [
        "2:invalid_line", "3:invalid_json_line", "4:invalid_line", "5:invalid_json_line",
    ]  # fmt: skip
    assert await checked(good.replace("POST", "GET")) == ["1:invalid_method"]
    assert await checked(good.replace("/v1/completions", "/v1/x")) == ["1:mismatched_url"]
    assert await checked(good.replace('{"model": "m"}', "7")) == ["1:invalid_body"]
    assert await checked(LINE % "", LINE % ("x" * 513)) == ["1:invalid_custom_id", "2:invalid_custom_id"]
    assert await checked(*(LINE % number for number in range(5)), most=3) == [
        "0:too_many_requests", "0:too_many_requests",
    ]  # fmt: skip
    assert len(await checked(*["x"] * 300, most=1000)) == MAX_FAULTS


def test_room() -> None:
    calm, busy = Load(running=10, max_running=128), Load(running=64, max_running=128)
    full = Load(running=1, waiting=1, max_running=128)

    def room(*loads: Load, running: int = 0, most: int = 64) -> int:
        return free_room(loads, running, max_running=most, share=0.5)

    assert room() == room(busy) == room(full) == 0
    assert room(calm) == room(calm, full) == AT_ONCE
    assert room(calm, running=62) == 2
    assert room(Load(running=61, max_running=128)) == 3


def test_records() -> None:
    assert cancelled(RECORD, 20).state == "cancelling"
    done = RECORD.to("completed", 30)
    assert done.ended
    assert cancelled(done, 40) == paused(done, on=True) == done
    mine = claimed(RECORD, "gw-1", 100.0, 10.0)
    assert mine is not None
    assert claimed(mine, "gw-2", 109.0, 10.0) is None
    theirs = claimed(mine, "gw-2", 111.0, 10.0)
    assert theirs is not None
    assert theirs.term == 2
    assert not set(RECORD.file_ids(1)) & set(RECORD.file_ids(2))
    assert (window_s("90s"), window_s("24h"), window_s("999999d")) == (90, 86_400, 30 * 86_400)


def test_result_lines() -> None:
    line = json.loads(answered(RECORD, 3, "a", 200, b'{"x": 1.50}'))
    assert line["response"] == {
        "status_code": 200, "request_id": RECORD.request_name(3), "body": {"x": 1.5},
    }  # fmt: skip
    assert json.loads(answered(RECORD, 3, "a", 502, b"<html>"))["response"]["body"] == "<html>"
    failed = json.loads(not_answered(RECORD, 3, "a", "batch_expired", "late"))
    assert (failed["response"], failed["error"]["code"]) == (None, "batch_expired")


def test_pages() -> None:
    items = [{"id": str(number)} for number in range(5)]

    def page(**query: str) -> tuple[list[str], bool]:
        found = page_of(items, {name: [value] for name, value in query.items()}, newest_first=True)
        return [item["id"] for item in found["data"]], found["has_more"]

    assert page() == (["4", "3", "2", "1", "0"], False)
    assert page(limit="2", after="3") == (["2", "1"], True)
    assert page(order="asc", limit="1") == (["0"], True)
    for wrong in ({"limit": "0"}, {"limit": "x"}, {"order": "up"}, {"after": "9"}):
        with pytest.raises(InvalidRequest):
            page(**wrong)


async def test_random_bytes_are_no_form_and_do_no_harm() -> None:
    whole = (
        b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\nContent-Disposition: '
        b'form-data; name="file"; filename="x"\r\n\r\n\x00\r\n--c\r\n\r\n--b--\r\n'
    )

    async def parsed(data: bytes, cut: int) -> tuple[NewFile, bytes]:
        messages: list[dict[str, Any]] = [
            {"type": "http.request", "body": data[start : start + cut], "more_body": True}
            for start in range(0, len(data), cut)
        ]
        messages.append({"type": "http.request", "body": b"", "more_body": False})

        async def receive() -> dict[str, Any]:
            return messages.pop(0)

        new = NewFile()
        form = FileForm(b"multipart/form-data; boundary=b", receive, new, min_rate=0, idle_s=5)
        return new, b"".join([part async for part in form.parts()])

    for cut in (1, 2, 5, 1000):
        new, data = await parsed(whole, cut)
        assert (new.purpose, new.filename, data) == ("batch", "x", b"\x00\r\n--c\r\n")
    chance = random.Random(5)
    for _ in range(300):
        broken = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        with suppress(InvalidRequest):
            await parsed(bytes(broken[: chance.randint(1, len(broken))]), chance.randint(1, 40))


def test_a_tenants_own_limit_of_lines_comes_before_that_of_the_settings() -> None:
    limits = {"t": Limits(batch_lines=10), "u": Limits()}
    rules = BatchRules("me", 1.0, 100, 1000, 5, 50, 4, 0.5, limits.get)
    assert [rules.max_waiting_of(tenant) for tenant in ("t", "u", "v")] == [10, 50, 50]
    log, other = BatchLog(cast(JetStream, None), 60.0), replace(RECORD, batch_id="batch_2")
    log.records |= {"batch_1": RECORD, "batch_2": replace(other, state="in_progress", total=7)}
    parts = BatchParts(log, cast(BatchStreams, None), cast(TenantFiles, None), rules)
    assert parts.max_lines_of(RECORD) == 10 - log.records["batch_2"].waiting
    assert parts.max_lines_of(replace(RECORD, tenant="u")) == 100
