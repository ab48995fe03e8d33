"""Sessions, pins, responses and deletions of several tenants: stored over the bus, read back to compare."""

from dataclasses import dataclass, field
from typing import NamedTuple

from shared.bus import Bus
from shared.client.calls.responses_client import ResponsesClient
from shared.client.calls.sessions_client import SessionsClient
from shared.errors import ResponseNotFound, SessionNotFound
from shared.messages import ResponseRecord, SessionRecord
from tests.kits.kvstate.service import record
from tests.kits.waiting import PATIENCE_S

BATCH = 50


class EntryKey(NamedTuple):
    """Where a record is."""

    tenant: str
    name: str


@dataclass
class KeptRecords:
    """What a store has, by tenant and id.

    Attributes:
        sessions: Session records.
        pins: The group of each pinned session.
        responses: Records of responses.
        deleted: Sessions that were deleted.
    """

    sessions: dict[EntryKey, SessionRecord] = field(default_factory=dict)
    pins: dict[EntryKey, str] = field(default_factory=dict)
    responses: dict[EntryKey, ResponseRecord] = field(default_factory=dict)
    deleted: set[EntryKey] = field(default_factory=set)


async def store_records(bus: Bus, tenants: list[str], count: int) -> KeptRecords:
    """Stores so many sessions for each tenant.

    Every fourth is pinned, every fifth has a response, and every tenth is deleted again.
    """
    sessions, responses, kept = (
        SessionsClient(bus, timeout_s=PATIENCE_S),
        ResponsesClient(bus, owner="test", timeout_s=PATIENCE_S, lease_ms=15_000),
        KeptRecords(),
    )
    for tenant in tenants:
        made = [record(tenant, f"s{n}", 1, text=f"text {n} \r\nof {tenant}") for n in range(count)]
        for first in range(0, count, BATCH):
            committed = await sessions.commit(made[first : first + BATCH])
            assert (committed.stale, committed.over_quota) == ([], [])
        for number in range(count):
            key = EntryKey(tenant, f"s{number}")
            if number % 10 == 9:
                await sessions.delete(*key)
                kept.deleted.add(key)
                continue
            if number % 4 == 0:
                await sessions.pin(*key, f"g{number % 3}")
                kept.pins[key] = f"g{number % 3}"
            if number % 5 == 0:
                answer = ResponseRecord(
                    response_id=f"resp_{number}", tenant=tenant, model="m", body=f'{{"n":{number}}}'
                )
                await responses.put(answer, is_new=True)
                kept.responses[EntryKey(tenant, answer.response_id)] = answer
            kept.sessions[key] = await sessions.get(*key)
    return kept


async def read_records(bus: Bus, wanted: KeptRecords) -> KeptRecords:
    """Reads what there is of the wanted records, and all pins."""
    sessions, responses, found = (
        SessionsClient(bus, timeout_s=PATIENCE_S),
        ResponsesClient(bus, owner="test", timeout_s=PATIENCE_S, lease_ms=15_000),
        KeptRecords(),
    )
    for key in (*wanted.sessions, *wanted.deleted):
        try:
            found.sessions[key] = await sessions.get(*key)
        except SessionNotFound:
            if key in wanted.deleted:
                found.deleted.add(key)
            continue
        if group := (await sessions.describe(*key)).pinned_group:
            found.pins[key] = group
    for key in wanted.responses:
        try:
            found.responses[key] = (await responses.get(*key)).record
        except ResponseNotFound:
            continue
    return found
