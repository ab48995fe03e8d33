"""What callers may do with batches, whatever the door: make, see, list, cancel, pause, resume."""

import time

from services.gateway.batches.batch_log import Change
from services.gateway.batches.batch_parts import BatchParts
from services.gateway.batches.batch_record import BatchRecord, cancelled, new_batch_id, paused
from services.gateway.batches.batch_schema import BatchRequest, window_s
from shared.errors import InvalidRequest, RateLimited


class BatchDesk:
    """Takes the wishes of tenants.

    Args:
        parts: Records, streams, files, limits.
    """

    def __init__(self, parts: BatchParts) -> None:
        self._parts = parts

    async def create(self, tenant: str, body: BatchRequest) -> BatchRecord:
        """Makes a batch, which begins in a moment.

        Raises:
            FileNotFound: The tenant has no such file.
            InvalidRequest: The file is for something else.
            RateLimited: The tenant has as many batches, or requests in them, as it may have.
            NoJetStream: The broker cannot keep batches.
        """
        parts = self._parts
        file = await parts.shelf.get(tenant, body.input_file_id)
        if file.purpose != "batch":
            raise InvalidRequest(
                f"file {file.file_id!r} was uploaded with the purpose {file.purpose!r}, and a batch reads "
                "files with the purpose 'batch'",
                param="input_file_id",
            )
        await parts.log.ensure_streams()
        await parts.streams.ensure_streams()
        await parts.log.poll()
        self._check_room(tenant)
        now_s = int(time.time())
        after = body.output_expires_after
        record = BatchRecord(
            batch_id=new_batch_id(),
            tenant=tenant,
            endpoint=body.endpoint,
            input_file_id=file.file_id,
            completion_window=body.completion_window,
            created_s=now_s,
            expires_s=now_s + window_s(body.completion_window),
            metadata=body.metadata or {},
            output_expires_s=after.seconds if after else 0,
        )
        await parts.log.create(record)
        return record

    async def get(self, tenant: str, batch_id: str) -> BatchRecord:
        """A batch as it is now; raises `BatchNotFound`."""
        return await self._parts.log.get(tenant, batch_id)

    async def batches_of(self, tenant: str) -> list[BatchRecord]:
        """The batches of a tenant, oldest first."""
        await self._parts.log.poll()
        mine = [record for record in self._parts.log.records.values() if record.tenant == tenant]
        return sorted(mine, key=lambda record: (record.created_s, record.batch_id))

    async def cancel(self, tenant: str, batch_id: str) -> BatchRecord:
        """Ends a batch; what is done stays, and stands in its files."""
        return await self._change(tenant, batch_id, lambda record: cancelled(record, time.time()))

    async def pause(self, tenant: str, batch_id: str, *, on: bool) -> BatchRecord:
        """Holds the requests of a batch back, or lets them go on; those that run end."""
        return await self._change(tenant, batch_id, lambda record: paused(record, on=on))

    async def _change(self, tenant: str, batch_id: str, change: Change) -> BatchRecord:
        return await self._parts.log.change(tenant, batch_id, change)

    def _check_room(self, tenant: str) -> None:
        rules = self._parts.rules
        mine = [record for record in self._parts.log.records.values() if record.tenant == tenant]
        count = sum(not record.ended for record in mine)
        waiting = sum(record.waiting for record in mine)
        if count >= rules.max_open:
            raise RateLimited(
                f"the tenant has {count} batches that have not ended, and may have {rules.max_open}: "
                "wait for one, or cancel one",
                reason="batch_quota",
            )
        if waiting >= rules.max_waiting:
            raise RateLimited(
                f"{waiting} requests wait in the tenant's batches, and {rules.max_waiting} may: "
                "wait for some, or cancel a batch",
                reason="batch_quota",
            )
