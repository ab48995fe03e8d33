"""Erases a tenant's data, class by class, and says what is gone and what is not.

Batches end first, since they write files; then files; then what the KV state service has. Each step may be
repeated: a second erasure finds what the first one left.
"""

import asyncio
import time

from msgspec import Struct
from msgspec.structs import replace

from services.gateway.resources.batches.service import BatchService
from shared import subjects
from shared.bus import Bus
from shared.bus.endpoint import call
from shared.bus.jetstream.errors import NoStream
from shared.messages import TenantErase, TenantErased

STEP_MS = 1000  # of the service's work between two answers
CALL_S = 15.0
PAUSE_S = 0.25


class ErasureReceipt(Struct, frozen=True, kw_only=True):
    """What an erasure has erased. Times are seconds since 1970.

    Attributes:
        complete: Nothing is left. Else the same call again goes on.
        batches_left: Batches that have not ended yet.
        usage_sums: Daily sums of usage that have lost the tenant's name and its keys.
        usage_records: Records of single requests that have.
    """

    tenant: str
    began_s: int
    ended_s: int = 0
    batches: int = 0
    batches_left: int = 0
    files: int = 0
    file_bytes: int = 0
    sessions: int = 0
    responses: int = 0
    kv_blocks: int = 0
    kv_bytes: int = 0
    usage_sums: int = 0
    usage_records: int = 0
    complete: bool = False


class TenantErasure:
    """Erases.

    Args:
        bus: Reaches the KV state service.
        batches: The batches and, with them, the files.
    """

    def __init__(self, bus: Bus, batches: BatchService) -> None:
        self._bus = bus
        self._batches = batches

    async def erase(self, tenant: str, within_s: float, actor: str) -> ErasureReceipt:
        """Erases what there is, for at most about that long; `actor` stands in the audit log.

        Raises:
            Unavailable: The broker, the KV state service or its store does not answer. What was erased until
                then is erased; the same call again goes on.
        """
        until = time.monotonic() + within_s
        receipt = ErasureReceipt(tenant=tenant, began_s=int(time.time()))
        await self._step(tenant, 0, actor)  # nothing is erased before it stands in the audit log
        receipt = await self._erase_batches(receipt, until)
        receipt = await self._erase_files(receipt)
        left = True
        while left and time.monotonic() < until:
            done = await self._step(tenant, STEP_MS)
            receipt = _with(receipt, done)
            left = done.left
            if left and not (done.sessions or done.responses or done.kv_blocks):
                await asyncio.sleep(PAUSE_S)  # leases of blocks run out, usage is rewritten
        return replace(receipt, ended_s=int(time.time()), complete=not left and not receipt.batches_left)

    async def _step(self, tenant: str, for_ms: int, actor: str = "") -> TenantErased:
        step = TenantErase(tenant=tenant, for_ms=for_ms, actor=actor)
        return await call(self._bus, subjects.TENANT_ERASE, step, TenantErased, timeout_s=CALL_S)

    async def _erase_batches(self, receipt: ErasureReceipt, until: float) -> ErasureReceipt:
        gone = left = 0
        try:
            while True:
                ended, left = await self._batches.erase_ended(receipt.tenant)
                gone += ended
                if not left or time.monotonic() >= until:
                    break
                await asyncio.sleep(PAUSE_S)
        except NoStream:
            left = 0  # the broker keeps no batches
        return replace(receipt, batches=gone, batches_left=left)

    async def _erase_files(self, receipt: ErasureReceipt) -> ErasureReceipt:
        store = self._batches.parts.files.store
        count = num_bytes = 0
        for file in await store.files_of(receipt.tenant):
            if await store.delete(receipt.tenant, file.file_id):
                count, num_bytes = count + 1, num_bytes + file.num_bytes
        return replace(receipt, files=count, file_bytes=num_bytes)


def _with(receipt: ErasureReceipt, done: TenantErased) -> ErasureReceipt:
    return replace(
        receipt,
        sessions=receipt.sessions + done.sessions,
        responses=receipt.responses + done.responses,
        kv_blocks=receipt.kv_blocks + done.kv_blocks,
        kv_bytes=receipt.kv_bytes + done.kv_bytes,
        usage_sums=receipt.usage_sums + done.usage_sums,
        usage_records=receipt.usage_records + done.usage_records,
    )
