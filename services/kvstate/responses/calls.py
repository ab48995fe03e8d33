"""The calls of gateways about responses."""

from collections.abc import Awaitable, Callable, Iterable

from msgspec import Raw

from services.kvstate.call_server import CallKind
from services.kvstate.redis.store_errors import StoreFull
from services.kvstate.responses.store import PutResult, ResponseEntry, ResponseStore
from shared import subjects
from shared.codec import encode
from shared.errors import RateLimited, RequestTooLarge, ResponseNotFound
from shared.messages import (
    ResponseChainQuery,
    ResponseClaim,
    ResponseDelete,
    ResponseDeleted,
    ResponseGet,
    ResponseLease,
    ResponseLeased,
    ResponseName,
    ResponsePut,
    ResponsesClaimed,
    ResponseStored,
    Wire,
)
from shared.messages.responses import MAX_CHAIN

MakeRoom = Callable[[Iterable[str]], Awaitable[int]]


class EncodedResponse(Wire, frozen=True, kw_only=True):
    """A `ResponseFound` whose record is encoded already and need not be decoded to be sent."""

    record: Raw
    abandoned: bool = False


class EncodedChain(Wire, frozen=True, kw_only=True):
    """A `ResponseChain` whose records are encoded already."""

    records: list[Raw]
    rest: str = ""


class ResponseCalls:
    """Answers the calls.

    Args:
        make_room: Evicts KV blocks for tenants when the store is full; returns how many went.
        max_record_bytes: Size of the largest record.
    """

    def __init__(self, store: ResponseStore, make_room: MakeRoom, max_record_bytes: int) -> None:
        self._store = store
        self._make_room = make_room
        self._max_record_bytes = max_record_bytes

    def calls(self) -> tuple[CallKind, ...]:
        """Returns the calls with their names, subjects and types."""
        return (
            CallKind("put_response", subjects.RESPONSE_PUT, ResponsePut, self._put),
            CallKind("get_response", subjects.RESPONSE_GET, ResponseGet, self._get),
            CallKind("chain_of_responses", subjects.RESPONSE_CHAIN, ResponseChainQuery, self._chain),
            CallKind("lease_response", subjects.RESPONSE_LEASE, ResponseLease, self._lease),
            CallKind("claim_responses", subjects.RESPONSE_CLAIM, ResponseClaim, self._claim),
            CallKind("delete_response", subjects.RESPONSE_DELETE, ResponseDelete, self._delete),
        )

    async def _put(self, put: ResponsePut) -> ResponseStored:
        record = put.record
        encoded = encode(record)
        if len(encoded) > self._max_record_bytes:
            raise RequestTooLarge(
                f"response {record.response_id!r} has {len(encoded)} bytes with its input, and "
                f"{self._max_record_bytes} can be stored (RYZ_SESSION_MAX_BYTES); send `store: false`",
                reason="response_size",
            )
        result = await self._put_entry(
            ResponseEntry(
                record.tenant,
                record.response_id,
                encoded,
                record.parent,
                record.ended,
                put.is_new,
                put.owner,
                put.lease_ms,
            )
        )
        if result.over_quota:
            raise RateLimited(
                "the tenant has as many responses, or bytes of them, as it may have: delete some, or have "
                "RYZ_RESPONSE_MAX_PER_TENANT or RYZ_RESPONSE_BYTES_PER_TENANT raised",
                reason="response_quota",
            )
        return ResponseStored(stored=result.stored, dropped=result.dropped)

    async def _put_entry(self, entry: ResponseEntry) -> PutResult:
        try:
            return await self._store.put(entry)
        except StoreFull:
            if not await self._make_room([entry.tenant]):
                raise
            return await self._store.put(entry)

    async def _get(self, query: ResponseGet) -> EncodedResponse:
        found = await self._store.get(query.tenant, query.response_id)
        if found is None:
            raise _no_response(query.response_id)
        return EncodedResponse(record=Raw(found.record), abandoned=found.abandoned)

    async def _chain(self, query: ResponseChainQuery) -> EncodedChain:
        room = min(query.room, self._max_record_bytes)
        found = await self._store.chain(query.tenant, query.response_id, room, MAX_CHAIN)
        if found.missing:
            raise _no_response(found.missing)
        return EncodedChain(records=[Raw(record) for record in found.records], rest=found.rest)

    async def _lease(self, query: ResponseLease) -> ResponseLeased:
        held = await self._store.lease(
            query.tenant, query.response_id, query.owner, query.lease_ms, takes_over=query.takes_over
        )
        return ResponseLeased(held=held)

    async def _claim(self, query: ResponseClaim) -> ResponsesClaimed:
        found = await self._store.claim(query.owner, query.lease_ms, query.limit)
        return ResponsesClaimed(
            responses=[ResponseName(tenant=tenant, response_id=response_id) for tenant, response_id in found]
        )

    async def _delete(self, query: ResponseDelete) -> ResponseDeleted:
        if not await self._store.delete(query.tenant, query.response_id):
            raise _no_response(query.response_id)
        return ResponseDeleted(response_id=query.response_id)


def _no_response(response_id: str) -> ResponseNotFound:
    return ResponseNotFound(
        f"no response {response_id!r}: it was deleted, has expired, or was not stored",
        response_id=response_id,
    )
