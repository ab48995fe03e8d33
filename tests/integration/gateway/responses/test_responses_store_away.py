"""Redis or kvstate is away under the Responses API: clear errors in time, and background responses end."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.kits.stacks.turn_stack import TurnsFleet
from tests.kits.waiting import PATIENCE_S

BODY: dict[str, Any] = {"model": "demo", "input": "Hello", "max_output_tokens": 8, "seed": 1}
ANSWER_S = 6.0  # an answer comes within that time, whatever is away


@contextmanager
def away(fleet: TurnsFleet, what: str) -> Iterator[None]:
    """Kills or freezes Redis or kvstate, and has it back at the end; a killed Redis loses all records."""
    part, how = what.split()
    process = fleet.redis.process if part == "redis" else fleet.processes["kvstate"]
    assert process is not None
    if how == "frozen":
        os.kill(process.pid, signal.SIGSTOP)
    elif part == "redis":
        fleet.redis.stop(kill=True)
    else:
        fleet.kill("kvstate")
    try:
        yield
    finally:
        if how == "frozen":
            os.kill(process.pid, signal.SIGCONT)
        elif part == "redis":
            fleet.redis.start()
        else:
            fleet.start_kvstate()


async def ask(http: httpx.AsyncClient, method: str, path: str = "", **body: Any) -> httpx.Response:
    async with asyncio.timeout(ANSWER_S):
        return await http.request(method, f"/v1/responses{path}", json=body or None)


async def read_back(http: httpx.AsyncClient, name: str) -> httpx.Response:
    """A response, once the store answers again and it has ended."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            answer = await ask(http, "GET", f"/{name}")
            if answer.status_code != 503 and answer.json().get("status") != "in_progress":
                return answer
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("what", ["redis killed", "redis frozen", "kvstate killed", "kvstate frozen"])
async def test_what_needs_the_store_is_refused_in_time_and_the_rest_is_answered(
    fleet: TurnsFleet, what: str
) -> None:
    async with fleet.http(0) as http:
        name = (await ask(http, "POST", **BODY)).json()["id"]
        with away(fleet, what):
            *refused, whole, streamed = await asyncio.gather(
                ask(http, "GET", f"/{name}"),
                ask(http, "GET", f"/{name}?stream=true"),
                ask(http, "GET", f"/{name}/input_items"),
                ask(http, "POST", f"/{name}/cancel"),
                ask(http, "DELETE", f"/{name}"),
                ask(http, "POST", **BODY, background=True),
                ask(http, "POST", **BODY, background=True, stream=True),
                ask(http, "POST", **BODY, previous_response_id=name),
                ask(http, "POST", **BODY),
                ask(http, "POST", **BODY, stream=True),
            )
            for answer in refused:
                assert answer.status_code == 503, answer.text
                assert answer.headers["x-ryz-reason"] == "session_store"
                assert int(answer.headers["retry-after"]) > 0
                error = answer.json()["error"]
                assert (error["type"], error["code"]) == ("server_error", "unavailable")
                assert error["message"]
            assert whole.json()["store"] is False, "it says that it cannot be read again"
            assert whole.json()["output"]
            assert '"store":false' in streamed.text
            assert streamed.text.endswith("data: [DONE]\n\n")
            assert fleet.running() == 0, "nothing was begun in the background"
        assert (await read_back(http, name)).status_code == (404 if what == "redis killed" else 200)


async def test_a_background_response_that_ends_while_the_store_is_away_is_stored_later(
    fleet: TurnsFleet,
) -> None:
    async with fleet.http(0) as http:
        expected = (await ask(http, "POST", **BODY | {"max_output_tokens": 400})).json()
        begun = await ask(http, "POST", **BODY | {"max_output_tokens": 400}, background=True)
        await fleet.until(lambda: fleet.running() == 1, "the response runs")
        with away(fleet, "kvstate killed"):
            await fleet.until(lambda: fleet.running() == 0, "the response has ended at its group", ANSWER_S)
            await asyncio.sleep(3)
        answer = (await read_back(http, begun.json()["id"])).json()
        assert answer["store"] is True
        assert [item["content"] for item in answer["output"]] == [i["content"] for i in expected["output"]]
