"""A gateway and a whole leader with the null engine on one in-memory bus, without a router between them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from shared import subjects
from shared.bus import Message
from shared.codec import decode, encode
from shared.messages import GenerateRequest, Route, Work
from shared.telemetry.spans.facts import SpanSink
from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.leader import Kit


@asynccontextmanager
async def gateway_with_leader(
    *, leader: dict[str, Any] | None = None, spans: SpanSink | None = None, **settings: Any
) -> AsyncIterator[Gateway]:
    """Runs both; each request goes to the leader, as a router would send it.

    Args:
        leader: Options of the leader's `Kit`.
        spans: Takes the spans of both.
        settings: Of the gateway.
    """
    async with running_gateway(scripted=False, spans=spans, **settings) as gateway:
        bus = MemoryBus(gateway.broker)

        async def forward(message: Message) -> None:
            request = decode(message.data, GenerateRequest)
            gateway.fleet.requests.append(request)
            work = Work(
                request=message.data, route=Route(group="g0", reason="test"), reply_to=request.reply_to
            )
            await bus.publish(subjects.work("g0"), encode(work), headers=dict(message.headers))

        await bus.subscribe(subjects.GENERATE_ALL, forward, queue=subjects.ROUTER_QUEUE)
        async with Kit(bus, spans=spans, **(leader or {})) as kit:
            gateway.leader_metric = kit.metric
            yield gateway
            await gateway.wait_idle()
            await kit.all_free()
        await bus.close()
