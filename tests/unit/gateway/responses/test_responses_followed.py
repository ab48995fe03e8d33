"""A response in the background is followed by number; it has no last event here if it goes on elsewhere."""

from typing import Any

from services.gateway.answering.events.ports import DONE, EventBatch
from services.gateway.formats.responses.schema import ResponseRequest
from services.gateway.formats.responses.translation import response_call
from services.gateway.resources.stored_responses.begun_answer import RunEvents
from services.gateway.resources.stored_responses.kept_events import EventRoom
from services.gateway.resources.stored_responses.kept_run import KeptRun
from services.gateway.transports.http.server_sent_events import encoded_batch
from shared.messages import Delta, Usage


def run_of(room_bytes: int = 100_000) -> KeptRun:
    body = ResponseRequest(model="m", input="Hello", background=True, stream=True)
    more: dict[str, Any] = {"request_id": "r", "tenant": "t", "seed": 1, "created_s": 5}
    return KeptRun(response_call(body, [], drops_blocks=True, **more), EventRoom(room_bytes))


async def followed(run: KeptRun, after: int = -1) -> list[EventBatch]:
    async def find() -> KeptRun:
        return run

    events, found = RunEvents(find, after), list[EventBatch]()
    assert events.numbered
    await events.open(0.0)
    while not events.ended:
        found.append(await events.next_batch())
    return found


def end(run: KeptRun) -> None:
    run.kept.append(run.events.deltas([Delta(text="Hi", finish_reason="stop")]))
    run.kept.append([*run.events.finish(Usage(), 9), run.events.last()])


async def test_its_events_come_by_number_and_end_regularly() -> None:
    run = run_of()
    end(run)
    first, last = await followed(run)
    assert [number for number, _ in first] == list(range(len(first)))
    assert last[0][1] == [DONE]
    later, _ = await followed(run, after=3)
    assert later == first[4:]


async def test_its_numbers_are_the_ids_of_server_sent_events() -> None:
    run = run_of()
    (batch,) = [[(event.number, [event.for_stream]) for event in run.kept.above(1)]]
    reported = encoded_batch(batch, ids=True, numbered=True)
    assert reported.startswith(b"event: response.in_progress\nid: 2\ndata: {")
    assert b"id:" not in encoded_batch(batch, ids=False, numbered=True)


async def test_a_run_that_goes_on_elsewhere_has_no_last_event() -> None:
    run = run_of()
    run.leave()
    batches = await followed(run)
    assert batches[-1] == []


async def test_a_reader_that_was_too_slow_gets_no_last_event() -> None:
    run = run_of(room_bytes=10)
    end(run)
    assert await followed(run) == [[]]
