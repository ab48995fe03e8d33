"""The request that a task works for is named in its log lines, in those of its tasks, and in its calls."""

import asyncio
import json

import pytest
import structlog

from shared.bus import Message
from shared.bus.endpoint import Endpoint, bound_to, call
from shared.messages import ListModels, ModelList
from shared.settings import CommonSettings
from shared.telemetry.logs.setup import configure_logging
from shared.telemetry.request_ids import bind_request, current_request, log_ids, trace_id_of
from tests.kits.memory_bus import MemoryBus

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    "parent",
    ["", "nonsense", "00-1-2-01", f"00-{TRACE.upper()}-b7ad6b7169203331-01", f"00-{'g' * 32}-1-01"],
)
def test_what_is_no_trace_is_not_logged(parent: str) -> None:
    assert trace_id_of(parent) == ""
    assert log_ids("r-1", {"traceparent": parent}) == {"request_id": "r-1"}


def test_the_ids_of_a_request_among_several_are_named() -> None:
    assert log_ids("r-1", {"traceparent": PARENT}) == {"request_id": "r-1", "trace_id": TRACE}
    assert log_ids("r-1", PARENT) == log_ids("r-1", {"traceparent": PARENT})


async def test_a_call_names_the_request_in_the_log_of_who_answers(
    memory_bus: MemoryBus, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging(CommonSettings(instance_id="i1"), "kvstate")
    log = structlog.get_logger()
    seen: list[dict[str, str]] = []

    async def answer(_: ListModels, message: Message) -> ModelList:
        log.info("ready")
        return ModelList(models=[])

    respond = Endpoint(memory_bus).handler(ListModels, answer)

    async def handle(message: Message) -> None:
        seen.append(dict(message.headers))
        with bound_to(message):
            await respond(message)

    await memory_bus.subscribe("models", handle)

    async def ask() -> None:
        await call(memory_bus, "models", ListModels(), ModelList, timeout_s=5)

    with bind_request("r-1", PARENT):
        asked = asyncio.create_task(ask())  # a task inherits the request
    assert current_request() is None
    await asked
    await ask()
    assert seen == [{"Ryz-Request-Id": "r-1", "traceparent": PARENT}, {}]
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (first["request_id"], first["trace_id"]) == ("r-1", TRACE)
    assert "request_id" not in second
