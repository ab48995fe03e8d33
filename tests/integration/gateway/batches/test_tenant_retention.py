"""Files and batches of a tenant go after its days, in both stores; those of another tenant stay."""

import time
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from services.gateway.resources.batches.assembly import batch_service
from services.gateway.resources.batches.record import BatchRecord
from services.gateway.resources.batches.retention import Retention
from services.gateway.resources.batches.service import BatchService
from services.gateway.resources.files.store import OUTPUT, StoredFile
from services.gateway.resources.files.tenants import NewFile
from services.gateway.settings import GatewaySettings
from shared.accounts.register import AccountRegister
from shared.bus.jetstream.jetstream import JetStream
from shared.bus.nats import NatsBus
from shared.errors import BatchNotFound, FileNotFound
from shared.messages import AccountChanged, StoredAccount, TenantRecord
from tests.kits.servers import NatsServer

DAY_S = 86_400
TENANTS = ("acme", "other")


@dataclass
class Kept:
    """Files and batches, and the register that says how long they are kept."""

    batches: BatchService
    register: AccountRegister

    def set_days(self, tenant: str, **days: int) -> None:
        before = self.register.version
        stored = StoredAccount(record=replace(TenantRecord(tenant=tenant), **days), revision=before + 1)
        self.register.apply(AccountChanged(before=before, version=before + 1, put=stored))

    async def store_file(self, tenant: str, file_id: str, age_days: float, **more: str | int) -> None:
        made_s = int(time.time() - age_days * DAY_S)
        given = {"purpose": "batch", "expires_s": 0} | more
        store = self.batches.parts.files.store
        writer = await store.begin(tenant)
        await writer.write(b"abc")
        await writer.commit(
            StoredFile(file_id=file_id, tenant=tenant, filename="f", num_bytes=3, created_s=made_s, **given)  # type: ignore[arg-type]
        )

    async def store_batch(
        self, tenant: str, batch_id: str, age_days: float, state: str = "completed"
    ) -> None:
        ended = state == "completed"
        at_s = int(time.time() - age_days * DAY_S)
        name = batch_id.replace("batch_", "")
        if ended:
            await self.store_file(tenant, f"file-{name}out", age_days, purpose=OUTPUT)
        await self.batches.parts.log.create(
            BatchRecord(
                batch_id=batch_id, tenant=tenant, endpoint="/v1/embeddings", input_file_id="file-in",
                completion_window="24h", created_s=at_s, expires_s=at_s + DAY_S, state=state,  # type: ignore[arg-type]
                times={state: at_s}, cleaned=ended, output_file_id=f"file-{name}out" if ended else "",
            )
        )  # fmt: skip

    async def stored_files(self, tenant: str) -> set[str]:
        """What has bytes, whatever callers see."""
        return {one.file_id for one in await self.batches.parts.files.store.files_of(tenant)}

    async def seen(self, tenant: str) -> tuple[set[str], set[str]]:
        files = {one.file_id for one in await self.batches.parts.files.files_of(tenant)}
        return files, {one.batch_id for one in await self.batches.batches_of(tenant)}


@pytest.fixture(params=["directory", "nats"])
async def kept(request: pytest.FixtureRequest, broker: NatsServer, tmp_path: Path) -> AsyncIterator[Kept]:
    settings = GatewaySettings(files_store=request.param, files_dir=str(tmp_path / "files"))
    async with AsyncExitStack() as stack:
        bus = await NatsBus.connect(broker.url, name="test")
        stack.push_async_callback(bus.close)
        jetstream, register = JetStream(bus), AccountRegister()
        stack.push_async_callback(jetstream.stop)
        made = Kept(batch_service(settings, jetstream, register), register)
        await made.batches.parts.log.ensure_streams()
        yield made


async def one_part(data: bytes) -> AsyncIterable[bytes]:
    yield data


async def fill(kept: Kept) -> None:
    for tenant in TENANTS:
        for age in (1, 3, 9):
            await kept.store_file(tenant, f"file-{age}", age)
            await kept.store_batch(tenant, f"batch_{tenant}{age}", age)
        await kept.store_batch(tenant, f"batch_{tenant}runs", 9, "in_progress")


async def test_what_is_over_goes_and_another_tenants_stays(kept: Kept) -> None:
    await fill(kept)
    retention = Retention(kept.batches, kept.register)
    await retention.remove_old()
    before = {tenant: await kept.seen(tenant) for tenant in TENANTS}
    assert [tuple(map(len, before[tenant])) for tenant in TENANTS] == [(6, 4), (6, 4)]

    kept.set_days("acme", file_days=5, batch_days=2)  # what is there has to follow
    with pytest.raises(FileNotFound):
        await kept.batches.parts.files.get("acme", "file-9")
    with pytest.raises(BatchNotFound):
        await kept.batches.get("acme", "batch_acme3")
    assert (await kept.batches.get("acme", "batch_acme1")).batch_id == "batch_acme1"
    await retention.remove_old()
    files, batches = await kept.seen("acme")
    assert files == {"file-1", "file-3", "file-acme1out"} == await kept.stored_files("acme")
    assert batches == {"batch_acme1", "batch_acmeruns"}, "a batch that runs stays"
    assert await kept.seen("other") == before["other"]
    assert await kept.stored_files("other") == before["other"][0]

    kept.set_days("acme", file_days=2, batch_days=0)  # batches again as the settings say
    await retention.remove_old()
    assert (await kept.seen("acme"))[0] == {"file-1", "file-acme1out"} == await kept.stored_files("acme")


async def test_a_new_file_gets_its_time_when_it_is_stored(kept: Kept) -> None:
    files, now_s = kept.batches.parts.files, time.time()
    kept.set_days("acme", file_days=5, batch_days=2)

    async def lives(tenant: str, after_s: int = 0) -> float:
        new = NewFile(purpose="batch", expires_after_s=after_s)
        stored = await files.add(tenant, new, one_part(b"abc"))
        return round((stored.expires_s - now_s) / DAY_S, 2) if stored.expires_s else 0

    assert await lives("acme") == 5
    assert await lives("acme", 2 * DAY_S) == 2, "it came with a shorter time"
    assert await lives("acme", 30 * DAY_S) == 5
    assert (await lives("other"), await lives("other", 30 * DAY_S)) == (0, 30)
    assert files.ends_s("acme", OUTPUT, 1000) == 1000 + 2 * DAY_S


async def test_an_erasure_takes_batches_whose_time_is_over(kept: Kept) -> None:
    await fill(kept)
    kept.set_days("acme", batch_days=2)
    gone, left = await kept.batches.erase_ended("acme")
    assert (gone, left) == (3, 1)
