"""Routers on a real broker, with a caller and leaders that answer immediately."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import uuid4

import msgspec

from services.router.__main__ import setup
from services.router.settings import RouterSettings
from shared import subjects
from shared.bus import Message
from shared.bus.endpoint import Endpoint
from shared.bus.nats import NatsBus
from shared.codec import decode, decode_reply, encode
from shared.errors import RyzError
from shared.lifecycle import Service
from shared.messages import (
    Accepted,
    AdapterInspected,
    AnyFrame,
    Done,
    Failed,
    FrameBatch,
    GenerateRequest,
    Heartbeat,
    InspectAdapter,
    Load,
    ModelCard,
    ServiceStatus,
    SessionRef,
    State,
    StatusQuery,
    Usage,
    Work,
)
from tests.kits.constants import settings_with_constants
from tests.kits.programs.launch import AsyncProgram, async_program
from tests.kits.waiting import PATIENCE_S, until

BEAT_MS = 40


class Leader:
    """Sends heartbeats and ends every request immediately; a known request is answered again, not rerun."""

    def __init__(self, bus: NatsBus, group: str, model: str) -> None:
        self.bus, self.group, self.model = bus, group, model
        self.state: State = "ready"
        self.load = Load(max_running=64, max_waiting=64)
        self.taken: list[tuple[Work, Message]] = []
        self.started: set[str] = set()
        self.beating = self.working = True
        self.adapters: list[str] = []  # fingerprints that heartbeats list
        self.inspected: list[InspectAdapter] = []
        self.inspection: AdapterInspected | RyzError = AdapterInspected(
            fingerprint="a" * 32, rank=8, num_bytes=1000
        )
        self._beats: asyncio.Task[None] | None = None

    async def start(self) -> None:
        if self.working:
            self._work = await self.bus.subscribe(subjects.work(self.group), self._take)
            inspect = Endpoint(self.bus).handler(InspectAdapter, self._inspect)
            subject = subjects.inspect_adapter(self.model)
            self._inspects = await self.bus.subscribe(subject, inspect, queue=subjects.TOKENIZE_QUEUE)
        self._beats = asyncio.create_task(self._beat())

    async def stop(self) -> None:
        if self._beats is not None:
            self._beats.cancel()
            await asyncio.gather(self._beats, return_exceptions=True)
        await self.deafen()

    async def deafen(self) -> None:
        """Ends the work subscription and keeps sending heartbeats."""
        if self.working:
            self.working = False
            await self._work.unsubscribe()
            await self._inspects.unsubscribe()
            await self.bus.flush()

    async def _beat(self) -> None:
        seq, instance_id = 0, uuid4().hex
        while True:
            if self.beating:
                seq += 1
                heartbeat = Heartbeat(
                    group=self.group,
                    instance_id=instance_id,
                    seq=seq,
                    interval_ms=BEAT_MS,
                    state=self.state,
                    model=ModelCard(name=self.model, context_length=1024),
                    load=self.load,
                    accepted_total=len(self.taken),
                    adapters=self.adapters,
                )
                await self.bus.publish(subjects.heartbeat(self.group), encode(heartbeat))
            await asyncio.sleep(BEAT_MS / 1000)

    async def _inspect(self, asked: InspectAdapter, _: Message) -> AdapterInspected:
        self.inspected.append(asked)
        if isinstance(self.inspection, RyzError):
            raise self.inspection
        return self.inspection

    async def _take(self, message: Message) -> None:
        work = decode(message.data, Work)
        request_id = decode(work.request, GenerateRequest).request_id
        self.taken.append((work, message))
        self.started.add(request_id)
        frames: list[AnyFrame] = [
            Accepted(request_id=request_id, group=self.group),
            Done(request_id=request_id, seq=1, usage=Usage()),
        ]
        await self.bus.publish(work.reply_to, encode(FrameBatch(frames=frames)))


async def until_known(service: Service, *leaders: Leader) -> None:
    """Waits until a router has heard of the leaders' present states and loads."""

    def known() -> bool:
        rows = {row["group"]: row for row in service.status().detail["groups"]}
        return all(
            leader.group in rows
            and (rows[leader.group]["state"], rows[leader.group]["load"])
            == (leader.state, msgspec.to_builtins(leader.load))
            for leader in leaders
        )

    await until(known)


class Caller:
    """Publishes requests and keeps the frames that come back, by request id."""

    def __init__(self, bus: NatsBus, model: str) -> None:
        self.bus, self.model = bus, model
        self.inbox = bus.new_inbox()
        self.frames: dict[str, list[AnyFrame]] = {}
        self.no_responders: list[str] = []

    async def start(self) -> None:
        await self.bus.subscribe(f"{self.inbox}.>", self._hear)

    async def publish(self, request: GenerateRequest, **headers: str) -> None:
        reply = f"{self.inbox}.{request.request_id}"
        await self.bus.publish(
            subjects.generate(request.model), encode(request), reply=reply, headers=headers
        )

    def request(self, session_id: str = "", **more: Any) -> GenerateRequest:
        fields: dict[str, Any] = {
            "request_id": f"r-{uuid4().hex[:12]}",
            "model": self.model,
            "prompt": "hello",
            "reply_to": f"{self.inbox}.f",
        }
        if session_id:
            fields["session"] = SessionRef(session_id=session_id)
        return GenerateRequest(**{**fields, **more})

    async def ask(self, request: GenerateRequest, **headers: str) -> AnyFrame:
        """The first frame of the answer."""
        await self.publish(request, **headers)
        return await self.answer(request.request_id)

    async def answer(self, request_id: str) -> AnyFrame:
        await until(lambda: request_id in self.frames)
        return self.frames[request_id][0]

    async def group_of(self, session_id: str) -> str:
        frame = await self.ask(self.request(session_id))
        assert isinstance(frame, Accepted), frame
        return frame.group

    async def failure(self, request: GenerateRequest, **headers: str) -> Failed:
        frame = await self.ask(request, **headers)
        assert isinstance(frame, Failed), frame
        assert (frame.request_id, frame.seq) == (request.request_id, 0)
        return frame

    async def _hear(self, message: Message) -> None:
        if message.no_responders:
            self.no_responders.append(message.subject.rpartition(".")[2])
            return
        for frame in decode(message.data, FrameBatch).frames:
            self.frames.setdefault(frame.request_id, []).append(frame)


@asynccontextmanager
async def router(nats_url: str, **more: object) -> AsyncIterator[Service]:
    base = {"nats_url": nats_url, "warmup_s": 0.1, "router_heartbeat_slack_s": 0.05}
    service = Service(settings_with_constants(RouterSettings, {**base, **more}), "router")
    async with AsyncExitStack() as stack:
        await setup(service, stack)
        yield service
        await service.drain()
        await service.finish()


@asynccontextmanager
async def router_process(nats_url: str, nats_bus: NatsBus, instance_id: str) -> AsyncIterator[AsyncProgram]:
    """Starts a router process and waits until it is ready; kills it at the end if it still runs."""
    env = {
        "RYZ_NATS_URL": nats_url,
        "RYZ_INSTANCE_ID": instance_id,
        "RYZ_LOG_LEVEL": "warning",
        "PATH": os.environ["PATH"],
    }
    inbox, ready = nats_bus.new_inbox(), asyncio.Event()

    async def hear(message: Message) -> None:
        if message.no_responders:
            return
        status = decode_reply(message.data, ServiceStatus)
        if status.instance_id == instance_id and status.state == "ready":
            ready.set()

    await nats_bus.subscribe(inbox, hear)
    async with async_program("services.router", env=env) as process:
        async with asyncio.timeout(PATIENCE_S):
            while not ready.is_set():
                await nats_bus.publish(subjects.STATUS, encode(StatusQuery()), reply=inbox)
                await asyncio.sleep(0.05)
        yield process
