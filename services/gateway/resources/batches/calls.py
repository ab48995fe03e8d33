"""NATS endpoints for files and batches, with the same `BatchService` and `TenantFiles` as the HTTP routes."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

from pydantic import ValidationError

from services.gateway.admission.identity.identity import Identity
from services.gateway.resources.batches.record import BatchRecord
from services.gateway.resources.batches.service import BatchRequest, BatchService
from services.gateway.resources.files.store import StoredFile
from services.gateway.resources.files.tenants import NewFile
from shared import subjects
from shared.accounts.bus_users import check_bus_user
from shared.accounts.register import AccountRegister
from shared.bus import Bus, Message, Subscription
from shared.bus.endpoint import Answer, Endpoint
from shared.bus.subject import can_answer
from shared.errors import InvalidRequest
from shared.messages import (
    BatchCreate,
    BatchesFound,
    BatchFacts,
    BatchProblem,
    BatchQuery,
    FileBytes,
    FileFacts,
    FileJoin,
    FilePut,
    FileQuery,
    FileRead,
    FilesFound,
    Wire,
)
from shared.messages.batches import MAX_LISTED
from shared.subjects import ANY_CALLER, caller_of, tenant_of

AT_ONCE = 16
MAX_PENDING = 1024
_ROOM = 4096  # bytes of a message beside the bytes of a file


class BatchCalls:
    """Answers calls on the subjects of files and batches, with all other gateways as one queue group.

    Args:
        bus: The connection.
        batches: Creates and changes batches, and has their files.
        accounts: Has the bus users.
    """

    def __init__(self, bus: Bus, batches: BatchService, accounts: AccountRegister) -> None:
        self._bus = bus
        self._accounts = accounts
        self._files = batches.parts.files
        self._batches = batches
        self._subscriptions: list[Subscription] = []
        endpoint = Endpoint(bus)
        kinds: tuple[tuple[str, type[Wire], Answer[Any]], ...] = (
            ("files.put", FilePut, self._put),
            ("files.join", FileJoin, self._join),
            ("files.read", FileRead, self._read),
            ("files.query", FileQuery, self._query_files),
            ("batches.create", BatchCreate, self._create),
            ("batches.query", BatchQuery, self._query_batches),
        )
        self._handlers = {name: endpoint.handler(kind, self._checked(answer)) for name, kind, answer in kinds}

    async def start(self) -> None:
        """Subscribes."""
        for caller in (None, ANY_CALLER):
            for pattern in subjects.batch_calls(caller):
                self._subscriptions.append(
                    await self._bus.subscribe(
                        pattern,
                        self._handle,
                        queue=subjects.GATEWAY_QUEUE,
                        max_concurrent=AT_ONCE,
                        max_pending=MAX_PENDING,
                    )
                )

    async def stop(self) -> None:
        """Takes no more calls."""
        for subscription in self._subscriptions:
            await subscription.unsubscribe()
        self._subscriptions.clear()

    async def _handle(self, message: Message) -> None:
        if not can_answer(message.reply, caller_of(message.subject)):
            return  # it has no reply subject of its own caller
        handler = self._handlers.get(".".join(message.subject.split(".")[-2:]))
        if handler is not None:  # other names are of a newer version
            await handler(message)

    def _checked(self, answer: Answer[Any]) -> Answer[Any]:
        """Returns an answer that bus users get only while they may do anything."""

        async def answer_allowed(query: Any, message: Message) -> Wire | None:
            caller = caller_of(message.subject)
            if caller is not None:
                check_bus_user(self._accounts, caller, time.time())
            return await answer(query, message)

        return answer_allowed

    async def _put(self, put: FilePut, message: Message) -> Wire:
        async def parts() -> AsyncIterator[bytes]:
            yield put.data

        new = NewFile(filename=put.filename, purpose=put.purpose)
        return _found([await self._files.add(tenant_of(message.subject, put.tenant), new, parts())])

    async def _join(self, join: FileJoin, message: Message) -> Wire:
        tenant = tenant_of(message.subject, join.tenant)
        files = [await self._files.get(tenant, file_id) for file_id in join.file_ids]

        async def parts() -> AsyncIterator[bytes]:
            for file in files:
                async for part in self._files.read(file):
                    yield part

        new = NewFile(filename=join.filename, purpose=join.purpose)
        whole = await self._files.add(tenant, new, parts())
        for file in files:
            await self._files.store.delete(tenant, file.file_id)
        return _found([whole])

    async def _read(self, read: FileRead, message: Message) -> Wire:
        file = await self._files.get(tenant_of(message.subject, read.tenant), read.file_id)
        limit, data = self._bus.max_payload - _ROOM, bytearray()
        async with aclosing(self._files.read(file, read.start)) as parts:  # type: ignore[type-var]
            async for part in parts:
                data += part
                if len(data) >= limit:
                    break
        return FileBytes(file=_facts(file), data=bytes(data[:limit]))

    async def _query_files(self, query: FileQuery, message: Message) -> Wire:
        tenant = tenant_of(message.subject, query.tenant)
        if query.action == "delete":
            await self._files.delete(tenant, query.file_id)
            return FilesFound()
        if query.action == "get":
            return _found([await self._files.get(tenant, query.file_id)])
        files = await self._files.files_of(tenant, query.purpose)
        ids = [file.file_id for file in files]
        start = ids.index(query.file_id) + 1 if query.file_id in ids else 0
        return _found(files[start : start + MAX_LISTED], more=len(files) > start + MAX_LISTED)

    async def _create(self, create: BatchCreate, message: Message) -> Wire:
        try:
            body = BatchRequest(
                input_file_id=create.input_file_id,
                endpoint=create.endpoint,  # type: ignore[arg-type]
                completion_window=create.completion_window,
                metadata=create.metadata,
            )
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(map(str, first["loc"]))
            raise InvalidRequest(f"`{name}`: {first['msg']}", param=name) from error
        record = await self._batches.create(Identity(tenant_of(message.subject, create.tenant)), body)
        return BatchesFound(batches=[batch_facts(record)])

    async def _query_batches(self, query: BatchQuery, message: Message) -> Wire:
        tenant, name = tenant_of(message.subject, query.tenant), query.batch_id
        if query.action == "list":
            records = await self._batches.batches_of(tenant)
            ids = [record.batch_id for record in records]
            start = ids.index(name) + 1 if name in ids else 0
            page = records[start : start + MAX_LISTED]
            return BatchesFound(
                batches=[batch_facts(record) for record in page], more=len(records) > start + MAX_LISTED
            )
        if query.action == "get":
            record = await self._batches.get(tenant, name)
        elif query.action == "cancel":
            record = await self._batches.cancel(tenant, name)
        else:
            record = await self._batches.pause(tenant, name, on=query.action == "pause")
        return BatchesFound(batches=[batch_facts(record)])


def batch_facts(record: BatchRecord) -> BatchFacts:
    """A batch as callers on the bus see it."""
    return BatchFacts(
        batch_id=record.batch_id,
        endpoint=record.endpoint,
        input_file_id=record.input_file_id,
        state=record.state,
        created_s=record.created_s,
        expires_s=record.expires_s,
        paused=record.paused,
        total=record.total,
        completed=record.completed,
        failed=record.failed,
        output_file_id=record.output_file_id,
        error_file_id=record.error_file_id,
        times=record.times,
        metadata=record.metadata,
        problems=[
            BatchProblem(code=fault.code, message=fault.message, line=fault.line) for fault in record.faults
        ],
    )


def _found(files: Sequence[StoredFile], *, more: bool = False) -> FilesFound:
    return FilesFound(files=[_facts(file) for file in files], more=more)


def _facts(file: StoredFile) -> FileFacts:
    return FileFacts(
        file_id=file.file_id,
        filename=file.filename,
        purpose=file.purpose,
        num_bytes=file.num_bytes,
        created_s=file.created_s,
        expires_s=file.expires_s,
    )
