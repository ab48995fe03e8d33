"""Creates, lists, cancels, pauses and resumes batches of tenants, for every transport."""

import re
import time
from contextlib import suppress
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from services.gateway.admission.identity.identity import Identity, api_of, check_api
from services.gateway.formats.fields.body_types import LenientBody, RequestBody
from services.gateway.resources.batches.record import BatchRecord, cancelled, erased, new_batch_id, paused
from services.gateway.resources.batches.streams import BatchParts
from shared.errors import BatchNotFound, InvalidRequest, RateLimited

WINDOW = r"^[0-9]{1,6}[smhd]$"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
MAX_WINDOW_S = 30 * 86_400


def _check_window(text: str) -> str:
    if not re.fullmatch(WINDOW, text):
        raise PydanticCustomError(
            "wrong", "must be a number and s, m, h or d, such as 24h; at most 30d", {"at": ""}
        )
    return text


class ExpiresAfter(LenientBody):
    """When the files that a batch writes go."""

    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, Field(ge=3600, le=2_592_000)]


class BatchRequest(RequestBody):
    """The body of `POST /v1/batches`."""

    input_file_id: Annotated[str, Field(min_length=1, max_length=64)]
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
    completion_window: Annotated[
        str,
        AfterValidator(_check_window),
        Field(
            description="A number and s, m, h or d, at most 30d; what is left then ends.",
            json_schema_extra={"pattern": WINDOW},
        ),
    ] = "24h"
    metadata: (
        Annotated[
            dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
            Field(max_length=16),
        ]
        | None
    ) = None
    output_expires_after: ExpiresAfter | None = None


def window_s(text: str) -> int:
    """The seconds of a completion window."""
    return min(MAX_WINDOW_S, int(text[:-1]) * _UNITS[text[-1]])


class BatchService:
    """Creates, lists, cancels, pauses and resumes batches.

    Args:
        parts: Records, streams, files, limits.
    """

    def __init__(self, parts: BatchParts) -> None:
        self.parts = parts

    async def create(self, identity: Identity, body: BatchRequest) -> BatchRecord:
        """Makes a batch, which begins in a moment.

        Args:
            identity: Who asks for it; its requests run with what this may be used for.
            body: What is asked for.

        Raises:
            HttpRefusal: The key is not for the API of its requests.
            FileNotFound: The tenant has no such file.
            InvalidRequest: The file is for something else.
            RateLimited: The tenant has as many batches, or requests in them, as it may have.
            NoJetStream: The broker cannot keep batches.
        """
        parts, tenant = self.parts, identity.tenant
        check_api(identity, api_of(body.endpoint))
        file = await parts.files.get(tenant, body.input_file_id)
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
            key_id=identity.key_id,
            scopes=identity.scopes,
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
        return await self.parts.log.get(tenant, batch_id)

    async def batches_of(self, tenant: str) -> list[BatchRecord]:
        """The batches of a tenant, oldest first; raises `NoJetStream` if the broker cannot keep any."""
        if not await self.parts.log.poll():
            await self.parts.log.check_jetstream()
        log = self.parts.log
        mine = [one for one in log.records.values() if one.tenant == tenant and not log.is_over(one)]
        return sorted(mine, key=lambda record: (record.created_s, record.batch_id))

    async def cancel(self, tenant: str, batch_id: str) -> BatchRecord:
        """Ends a batch; what is done stays, and stands in its files."""
        return await self.parts.log.change(tenant, batch_id, lambda record: cancelled(record, time.time()))

    async def pause(self, tenant: str, batch_id: str, *, on: bool) -> BatchRecord:
        """Holds the requests of a batch back, or lets them go on; those that run end."""
        return await self.parts.log.change(tenant, batch_id, lambda record: paused(record, on=on))

    async def erase_ended(self, tenant: str) -> tuple[int, int]:
        """Ends the batches of a tenant, and erases those that have ended.

        Returns how many are erased, and how many have not ended yet: a batch ends in a moment, when the
        gateway that looks after it has stopped its requests.
        """
        gone = left = 0
        if not await self.parts.log.poll():
            await self.parts.log.check_jetstream()
        for record in [one for one in self.parts.log.records.values() if one.tenant == tenant]:
            if record.cleaned:
                await self.parts.log.change(tenant, record.batch_id, erased)
                gone += 1
            else:
                await self.cancel(tenant, record.batch_id)
                left += 1
        return gone, left

    async def remove_old(self, tenant: str) -> int:
        """Removes batches of a tenant that ended longer ago than they are kept, with the files they wrote.

        Returns how many.
        """
        log, files, gone = self.parts.log, self.parts.files.store, 0
        await log.poll()
        for record in list(log.records.values()):
            if record.tenant != tenant or not record.cleaned or not log.is_over(record):
                continue
            for file_id in filter(None, (record.output_file_id, record.error_file_id)):
                await files.delete(tenant, file_id)
            with suppress(BatchNotFound):  # another gateway was first
                await log.change(tenant, record.batch_id, erased)
                gone += 1
        return gone

    def _check_room(self, tenant: str) -> None:
        rules = self.parts.rules
        mine = [record for record in self.parts.log.records.values() if record.tenant == tenant]
        count = sum(not record.ended for record in mine)
        waiting = sum(record.waiting for record in mine)
        if count >= rules.max_open:
            raise RateLimited(
                f"the tenant has {count} batches that have not ended, and may have {rules.max_open}: "
                "wait for one, or cancel one",
                reason="batch_quota",
            )
        most = rules.max_waiting_of(tenant)
        if waiting >= most:
            raise RateLimited(
                f"{waiting} requests wait in the tenant's batches, and {most} may: "
                "wait for some, or cancel a batch",
                reason="batch_quota",
            )
