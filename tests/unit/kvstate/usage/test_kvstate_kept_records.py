"""Records of single requests go after the days of their tenant, and their sums stay."""

import pytest

from shared.codec import decode
from shared.messages import StoredAccount, TenantRecord, UsageRecords
from tests.kits.tenants.usage_streams import MemoryUsageStreams
from tests.unit.kvstate.usage.test_kvstate_usage_roller import NOON_MS, record, register, roller


async def test_a_tenants_records_of_requests_go_after_its_days(monkeypatch: pytest.MonkeyPatch) -> None:
    day_ms = 86_400_000
    now_ms = [NOON_MS + 10 * day_ms]
    monkeypatch.setattr("services.kvstate.usage.roller.time.time_ns", lambda: now_ms[0] * 1_000_000)
    known = register(TenantRecord(tenant="few", record_days=7), TenantRecord(tenant="all"))
    streams = MemoryUsageStreams()
    for tenant in ("few", "all"):
        for day in range(10):
            streams.add(record(f"r{day}", tenant=tenant, ended_ms=NOON_MS + day * day_ms))
    one, sums = roller(streams, known)

    def left() -> list[int]:
        found = [decode(message.data, UsageRecords).records[0] for message in streams.ledger]
        return [(each.ended_ms - NOON_MS) // day_ms for each in found if each.tenant == "few"]

    while await one.roll_once():
        pass
    assert left() == [4, 5, 6, 7, 8, 9]
    assert sum(total.requests for total in sums.page("", "", "", "")[0]) == 20, "the sums have all"
    assert len(streams.ledger) == 6 + 10
    now_ms[0] += day_ms
    await one.roll_once()
    assert left() == [5, 6, 7, 8, 9]
    shorter = TenantRecord(tenant="few", record_days=3)
    known.replace_all([StoredAccount(record=shorter, revision=2)], 2)
    await one.roll_once()
    assert left() == [9]


async def test_records_that_are_not_added_up_yet_stay() -> None:
    known = register(TenantRecord(tenant="few", record_days=7))
    streams = MemoryUsageStreams(at_once=2)
    for number in range(5):
        streams.add(record(f"r{number}", tenant="few", ended_ms=NOON_MS))  # long ago
    one, sums = roller(streams, known)
    await one.roll_once()
    assert len(streams.ledger) == 3
    while await one.roll_once():
        pass
    await one.roll_once()
    assert not streams.ledger
    assert sum(total.requests for total in sums.page("", "", "", "")[0]) == 5
