"""Responses that run in this gateway without their callers: begun here, or taken over from another gateway.

Each has a lease in the store, which is renewed while it runs. When this gateway stops or dies, the leases run
out, and other gateways go on: they attach to the generations at their leaders, or have them computed again,
with the same result.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import structlog

from services.gateway.admission.caller import Claim
from services.gateway.admission.quota import Quota
from services.gateway.answering.context import GatewayContext
from services.gateway.formats.responses.kept_answer import ResponseEnd
from services.gateway.formats.responses.translation import ResponseCall
from services.gateway.resources.stored_responses.kept_events import EventRoom
from services.gateway.resources.stored_responses.kept_run import KeptRun
from shared import subjects
from shared.client import GenerationStream
from shared.client.attach import AttachTarget, attach
from shared.client.calls.responses_client import ResponsesClient
from shared.codec import decode, encode
from shared.errors import Cancelled, Conflict, ResponseNotFound, RyzError
from shared.identity import new_request_id
from shared.messages import Cancel, GenerateRequest, ResponseName, ResponseRecord

KEEP_S = 60.0  # for which the events of an ended response are kept
MAX_KEPT = 256  # ended responses whose events are kept
_CLAIMED = 4  # responses of other gateways that are taken over at a time
log = structlog.get_logger(__name__)


class BackgroundRuns:
    """The responses in this gateway.

    Args:
        context: What all requests share.
        store: Has the records.
        spaces: How many may run, of all tenants and of one.
    """

    def __init__(self, context: GatewayContext, store: ResponsesClient, spaces: Quota) -> None:
        self._context = context
        self._store = store
        self._spaces = spaces
        self._runs: dict[tuple[str, str], KeptRun] = {}
        self._tasks: dict[asyncio.Task[None], tuple[KeptRun, GenerationStream]] = {}
        self._claims: dict[asyncio.Task[None], Claim] = {}  # of the running requests of tenants and keys
        self._kept: deque[tuple[tuple[str, str], KeptRun]] = deque()  # that have ended, the oldest first
        self._ending: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._room = EventRoom(context.settings.constants.response_events_bytes)

    def find(self, tenant: str, response_id: str) -> KeptRun | None:
        """Returns the run of a response, also for a while after its end."""
        run = self._runs.get((tenant, response_id))
        return None if run is None or run.left else run

    async def begin(self, call: ResponseCall, timeout_s: float, headers: dict[str, str]) -> KeptRun:
        """Stores a response and starts it.

        Raises:
            RyzError: It cannot be stored, or too many run; nothing was started.
        """
        self._spaces.take_units(call.request.party_or_tenant)
        try:
            running = call.fields | {"status": "in_progress"}
            record = call.record(running, ended=False, request=encode(call.request))
            await self._store.put(record, is_new=True)
        except BaseException:
            self._spaces.free_units(call.request.party_or_tenant)
            raise
        stream = self._context.client.submit(call.request, timeout_s=timeout_s, headers=headers)
        return self._start(KeptRun(call, self._room), stream)

    async def take_over(self, record: ResponseRecord) -> KeptRun:
        """Goes on with a response whose lease this gateway has.

        Raises:
            RyzError: Too many run here, or no broker.
        """
        known = self.find(record.tenant, record.response_id)
        if known is not None:
            return known
        call = call_of(record)
        self._spaces.take_units(call.request.party_or_tenant)
        try:
            stream, exact = await self._stream_of(call, record)
        except BaseException:
            self._spaces.free_units(call.request.party_or_tenant)
            raise
        return self._start(KeptRun(call, self._room, exact=exact), stream)

    async def cancel(self, record: ResponseRecord) -> ResponseRecord:
        """Ends a response that has not ended, wherever it runs; returns its record."""
        run = self.find(record.tenant, record.response_id)
        if run is not None and not run.over:
            run.events.fail(Cancelled("its caller cancelled it"))
            ended = run.record(run.events.whole(), ended=True)
        else:
            call = call_of(record)
            ended = call.record(call.fields | {"status": "cancelled"}, ended=True)
        if not await self._store.put(ended, is_new=False):  # it ended or was deleted meanwhile
            return (await self._store.get(record.tenant, record.response_id)).record
        await self.stop(record)
        return ended

    async def stop(self, record: ResponseRecord) -> None:
        """Has the generation of a response end, wherever it runs."""
        for task, (run, stream) in tuple(self._tasks.items()):
            if run.call.response_id == record.response_id and run.call.request.tenant == record.tenant:
                await stream.cancel("its caller cancelled it")
                await asyncio.wait([task], timeout=1.0)
                return
        if record.request:
            request_id = decode(record.request, GenerateRequest).request_id
            cancel = Cancel(request_id=request_id, tenant=record.tenant, reason="its caller cancelled it")
            await self._context.client.bus.publish(subjects.CANCEL_ALL, encode(cancel))

    def end_runs(self, is_meant: Callable[[GenerateRequest], bool]) -> int:
        """Ends the responses here whose requests are meant; returns how many."""
        meant = [stream for run, stream in self._tasks.values() if is_meant(run.call.request)]
        for stream in meant:
            task = asyncio.create_task(stream.cancel("its key was revoked"))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        return len(meant)

    async def watch(self) -> None:
        """Renews leases, and takes over responses whose gateways are gone, until it is cancelled."""
        while not self._stopping:
            await asyncio.sleep(self._store.lease_ms / 3000)
            try:
                await self._keep_up()
            except Exception as error:
                log.error("leases were not renewed", exc_info=error)

    async def _keep_up(self) -> None:
        for run, stream in tuple(self._tasks.values()):
            with suppress(RyzError):
                await self._renew(run, stream)
        names: list[ResponseName] = []
        if not self._stopping:
            with suppress(RyzError):  # the store is away
                names = await self._store.claim(_CLAIMED)
        for name in names:
            try:
                await self.take_over((await self._store.get(name.tenant, name.response_id)).record)
            except ResponseNotFound:
                continue  # deleted at this moment
            except RyzError as error:  # tried again when the lease is over
                log.warning(
                    "a response was not taken over", response_id=name.response_id, error=error.message
                )

    async def hand_over(self) -> None:
        """Leaves all responses running for other gateways: this one stops."""
        self._stopping = True
        for task, (run, stream) in tuple(self._tasks.items()):
            stream.leave()
            run.leave()
            task.cancel()
        await asyncio.gather(*self._tasks, *self._ending, return_exceptions=True)

    async def _renew(self, run: KeptRun, stream: GenerationStream) -> None:
        if not await self._store.lease(run.call.request.tenant, run.call.response_id) and not run.over:
            await stream.cancel("it has ended elsewhere")

    def _start(self, run: KeptRun, stream: GenerationStream) -> KeptRun:
        key = run.call.request.tenant, run.call.response_id
        self._runs[key] = run
        task = asyncio.create_task(self._read(run, stream))
        request = run.call.request
        self._claims[task] = self._context.admission.limits.hold_running(request.tenant, request.key_id)
        self._tasks[task] = run, stream
        task.add_done_callback(self._ended)
        return run

    async def _read(self, run: KeptRun, stream: GenerationStream) -> None:
        try:
            await stream.open()
            until = run.call.fields["created_at"] + self._context.settings.max_timeout_s
            await run.read(stream, ResponseEnd(self._store, run.call, is_new=False, tried_until=until))
        except asyncio.CancelledError:  # handed over: the lease ends, and the generation goes on
            with suppress(RyzError):
                await self._store.lease(run.call.request.tenant, run.call.response_id, gives_back=True)
            return
        except RyzError as error:  # it could not be started: another gateway tries when the lease is over
            log.warning("a response was not started", response_id=run.call.response_id, error=error.message)
            run.leave()
        stream.forget()

    def _ended(self, task: asyncio.Task[None]) -> None:
        run, _ = self._tasks.pop(task)
        claim = self._claims.pop(task)
        if not self._stopping:  # else it runs on, and its lease ends by itself
            self._context.admission.limits.give_back(claim)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a response failed", response_id=run.call.response_id, exc_info=error)
            run.leave()
        key = run.call.request.tenant, run.call.response_id
        self._spaces.free_units(run.call.request.party_or_tenant)
        if not run.over or run.left:
            self._forget(key, run)
            return
        run.kept.end()
        self._kept.append((key, run))
        if len(self._kept) > MAX_KEPT:
            self._forget(*self._kept.popleft())
        asyncio.get_running_loop().call_later(KEEP_S, self._forget, key, run)

    def _forget(self, key: tuple[str, str], run: KeptRun) -> None:
        if self._runs.get(key) is run:
            del self._runs[key]
        run.kept.forget()
        if self._kept and self._kept[0][1] is run:
            self._kept.popleft()

    async def _stream_of(self, call: ResponseCall, record: ResponseRecord) -> tuple[GenerationStream, bool]:
        """The generation of a response, and whether its events are those that were shown before."""
        client, settings = self._context.client, self._context.settings
        found = None
        with suppress(Conflict):
            found = await attach(
                client,
                AttachTarget(call.request.request_id, record.tenant),
                needed_seq=0,
                find_s=settings.stream_attach_timeout_s,
                timeout_s=settings.max_timeout_s,
            )
        if found is not None and found.first_seq == 0:
            return found.stream, True
        if found is not None:
            await found.stream.cancel("its beginning is kept no longer")
            found.stream.forget()
        first_id = call.request.usage_id or call.request.request_id
        request = msgspec.structs.replace(call.request, request_id=new_request_id(), usage_id=first_id)
        again = msgspec.structs.replace(record, request=encode(request))
        await self._store.put(again, is_new=False)
        log.info("a response is computed again", response_id=record.response_id)
        return client.submit(request, timeout_s=settings.max_timeout_s), False


def call_of(record: ResponseRecord) -> ResponseCall:
    """The call that a record which has not ended was made for."""
    fields: dict[str, Any] = msgspec.json.decode(record.body)
    return ResponseCall(
        request=decode(record.request, GenerateRequest),
        fields=fields | {"status": "queued"},
        input_items=msgspec.json.decode(record.input_items),
        stream=False,
    )
