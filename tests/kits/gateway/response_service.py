"""The calls about responses on any bus, with a store in memory."""

import time
from collections.abc import Iterable

from services.kvstate.responses.calls import ResponseCalls
from services.kvstate.responses.store import ResponseStore
from shared import subjects
from shared.bus import Bus
from shared.bus.endpoint import Endpoint
from shared.messages import Wire
from tests.kits.kvstate.memory_responses import MemoryResponseStore


async def serve_responses(bus: Bus, max_record_bytes: int = 512 * 1024) -> ResponseStore:
    """Answers the calls as the KV state service does, until the bus is closed."""
    store = MemoryResponseStore(ttl_s=3600.0, clock=time.monotonic)

    async def no_room(tenants: Iterable[str]) -> int:
        return 0

    endpoint = Endpoint(bus)
    for call in ResponseCalls(store, no_room, max_record_bytes).calls():

        async def answer(request: Wire, _: object, call: object = call) -> Wire:
            return await call.answer(request)  # type: ignore[attr-defined, no-any-return]

        respond = endpoint.handler(call.kind, answer)

        async def handle(message: object, respond: object = respond) -> None:
            await respond(message)  # type: ignore[operator]

        await bus.subscribe(call.subject, handle, queue=subjects.KVSTATE_QUEUE)
    return store
