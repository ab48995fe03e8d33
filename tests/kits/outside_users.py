"""Two external tenants, A and B, with a real broker, a router and a leader."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack

from shared import codec, subjects
from shared.bus import Message
from shared.bus.nats import NatsBus
from shared.lifecycle import Service as Process
from shared.messages import (
    AccountRecord,
    AnyFrame,
    Done,
    Failed,
    FrameBatch,
    GenerateRequest,
    Tokens,
)
from shared.subjects import OutsideService
from tests.kits.router.live import router
from tests.kits.servers import GuardedNats
from tests.kits.tenants.limit_services import LimitServices
from tests.kits.waiting import until
from tests.kits.worker.leader import Kit, chat, null_engine, text_of

A, B = OutsideService("tenant-a", "service-a"), OutsideService("tenant-b", "service-b")


COLLEAGUE = OutsideService("tenant-b", "service-b2")  # another service of B's tenant
HOLD_MS = 6000  # running requests of a router that is gone


def raw(request: GenerateRequest) -> dict[str, Any]:
    """A request's fields as they are encoded."""
    fields: dict[str, Any] = msgpack.unpackb(codec.encode(request), strict_map_key=False)
    return fields


class Service:
    """An external service that uses the bus without the client library and keeps all messages received."""

    def __init__(self, bus: NatsBus, caller: OutsideService) -> None:
        self.bus, self.caller = bus, caller
        self.inbox = bus.new_inbox()
        self.heard: list[Message] = []

    async def start(self) -> "Service":
        await self.bus.subscribe(f"{self.inbox}.>", self._hear)
        return self

    async def _hear(self, message: Message) -> None:
        self.heard.append(message)

    @property
    def frames(self) -> list[AnyFrame]:
        """All frames received so far, of all requests."""
        batches = [message for message in self.heard if not message.no_responders]
        return [frame for one in batches for frame in codec.decode(one.data, FrameBatch).frames]

    def of(self, request_id: str) -> list[AnyFrame]:
        return [frame for frame in self.frames if frame.request_id == request_id]

    async def send(self, request: GenerateRequest, own: bool = True, **more: Any) -> None:
        """Publishes a request.

        Args:
            request: The request.
            own: Use this caller's subject; otherwise the subject of internal services.
            more: Fields to change.
        """
        data = codec.encode(codec.convert(raw(request) | more, GenerateRequest))
        subject = subjects.generate(request.model, self.caller if own else None)
        await self.bus.publish(subject, data, reply=f"{self.inbox}.no-router")

    def ask(self, request_id: str, text: str = "hello", **more: Any) -> GenerateRequest:
        return chat(request_id, text, reply_to=f"{self.inbox}.f", **more)

    async def end_of(self, request_id: str) -> AnyFrame:
        def ended() -> bool:
            return any(isinstance(frame, Done | Failed) for frame in self.of(request_id))

        await until(ended)
        return self.of(request_id)[-1]

    async def run(self, request: GenerateRequest, **more: Any) -> AnyFrame:
        await self.send(request, **more)
        return await self.end_of(request.request_id)

    async def barrier(self) -> None:
        """Returns when the leader has handled everything that was sent before."""
        await self.bus.flush()
        await self.run(self.ask(f"barrier-{len(self.heard)}", sampling={"max_tokens": 1}))


class World:
    """A broker with two external tenants, a router, one group, and the gateway's connection.

    Attributes:
        limits: The store of limits, and the records of tenants.
    """

    def __init__(
        self,
        broker: GuardedNats,
        kit: Kit,
        gateway: NatsBus,
        services: list[Service],
        process: Process,
        *,
        limits: LimitServices,
    ) -> None:
        self.limits = limits
        self.broker, self.kit, self.gateway, self.router = broker, kit, gateway, process
        self.a, self.b, self.colleague = services

    async def running(self, request_id: str = "victim") -> GenerateRequest:
        """Starts a long request of B's and returns it once its first tokens have arrived."""
        request = self.b.ask(request_id, "B's secret", sampling={"max_tokens": 150})
        await self.b.send(request)
        await until(lambda: any(isinstance(frame, Tokens) for frame in self.b.of(request_id)))
        return request

    async def b_is_whole(self, request_id: str = "victim") -> None:
        """Checks that B's answer is complete, has one end, and contains only B's frames."""
        assert isinstance(await self.b.end_of(request_id), Done)
        frames = self.b.of(request_id)
        assert [frame.seq for frame in frames] == list(range(len(frames)))
        assert len(text_of(frames)) == 150
        assert {frame.attempt for frame in frames} == {0}


@asynccontextmanager
async def world(
    folder: Path,
    resend_bytes_s: int = 2**20,
    broker_config: str = "",
    *,
    records: Sequence[AccountRecord] = (),
    step_s: float = 0.005,
    **settings: object,
) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        broker = GuardedNats(folder, broker_config, callers=(A, B, COLLEAGUE))
        broker.start()
        stack.callback(broker.stop)

        async def bus(user: str) -> NatsBus:
            made = await NatsBus.connect(broker.url(user), name=user)
            stack.push_async_callback(made.close)
            return made

        accounts = LimitServices(await bus("kvstate"), hold_ms=HOLD_MS)
        await accounts.start()
        await accounts.put(*records)
        services = [await Service(await bus(caller.user), caller).start() for caller in (A, B, COLLEAGUE)]
        process = await stack.enter_async_context(router(broker.url("router"), **settings))
        kit = Kit(
            await bus("worker"),
            null_engine(delay_s=step_s),
            outside=await bus("worker"),
            outside_resend_bytes_s=resend_bytes_s,
        )
        await stack.enter_async_context(kit)
        await until(lambda: [one["state"] for one in process.status().detail["groups"]] == ["ready"])
        yield World(broker, kit, await bus("gateway"), services, process, limits=accounts)
