"""Adapters that a tenant may have."""

from dataclasses import dataclass

import pytest

from services.router.adapters.calls import AdapterLoadCalls
from shared.bus import Message
from shared.errors import RateLimited, Unavailable
from shared.messages import Adapter, Limits, LoadAdapterCall, StoredAccount, TenantRecord
from tests.kits.memory_bus import MemoryBus
from tests.kits.router.controlled import Controlled
from tests.kits.router.fleet import beat


@dataclass
class Case:
    name: str
    tenant: str
    refused: bool


async def test_a_tenant_has_no_more_adapters_than_its_limit(memory_bus: MemoryBus) -> None:
    router = Controlled(memory_bus)
    router.context.fleet.observe(beat(name="g0", instance="i1", model="m"), router.now)
    record = TenantRecord(tenant="t", limits=Limits(adapters=1))
    router.context.state.accounts.replace_all([StoredAccount(record=record, revision=1)], 1)
    there = Adapter(
        name="fr", base="m", source="/fr", fingerprint="a" * 32, rank=8, num_bytes=1, tenant="t", created_s=1
    )
    router.context.state.adapters.replace_all([there], 1)
    calls = AdapterLoadCalls(router.context)
    for case in (
        Case("de", "t", refused=True),
        Case("fr", "t", refused=False),
        Case("de", "u", refused=False),
    ):
        asked = LoadAdapterCall(base="m", name=case.name, source="/x", tenant=case.tenant)
        with pytest.raises((RateLimited, Unavailable)) as error:  # no leader is there to read files
            await calls.load_adapter(asked, Message("", b""))
        assert (error.value.data["reason"] == "tenant_adapters") == case.refused
