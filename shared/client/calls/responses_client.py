"""The calls of the KV state service about responses, typed."""

from typing import TypeVar

from shared import subjects
from shared.bus import Bus
from shared.bus.endpoint import call
from shared.client.calls.session_fleet import asking
from shared.errors import RequestTooLarge
from shared.messages import (
    ResponseChain,
    ResponseChainQuery,
    ResponseClaim,
    ResponseDelete,
    ResponseDeleted,
    ResponseFound,
    ResponseGet,
    ResponseLease,
    ResponseLeased,
    ResponseName,
    ResponsePut,
    ResponseRecord,
    ResponsesClaimed,
    ResponseStored,
    Wire,
)

M = TypeVar("M", bound=Wire)


class ResponsesClient:
    """Reads and writes records of responses.

    Every call raises `Unavailable` if the service does not answer, and `ResponseNotFound` if the tenant has
    no such response.

    Args:
        bus: The connection.
        owner: Name of this instance in leases.
        timeout_s: How long the service may take.
        lease_ms: For how long a response belongs to this instance without a sign of life.
        wait_s: How long the service is waited for while it is away.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        owner: str,
        timeout_s: float,
        lease_ms: int,
        wait_s: float = 0.0,
    ) -> None:
        self._bus = bus
        self._wait_s = min(wait_s, timeout_s)
        self._owner = owner
        self._timeout_s = timeout_s
        self.lease_ms = lease_ms

    async def put(self, record: ResponseRecord, *, is_new: bool) -> bool:
        """Stores a record, with a lease if it has not ended.

        Returns:
            False if the record there has ended, or was deleted.

        Raises:
            RequestTooLarge: It is over the store's limit.
            RateLimited: The tenant may store no more.
        """
        lease_ms = 0 if record.ended else self.lease_ms
        put = ResponsePut(record=record, is_new=is_new, owner=self._owner, lease_ms=lease_ms)
        try:
            return (await self._call(subjects.RESPONSE_PUT, put, ResponseStored)).stored
        except RequestTooLarge as error:  # it may not even fit into a message
            raise RequestTooLarge(
                f"response {record.response_id!r} is larger than the store takes (RYZ_SESSION_MAX_BYTES); "
                "send `store: false`",
                reason="response_size",
            ) from error

    async def get(self, tenant: str, response_id: str) -> ResponseFound:
        """The record, and whether its owner is gone."""
        question = ResponseGet(tenant=tenant, response_id=response_id)
        return await self._call(subjects.RESPONSE_GET, question, ResponseFound, tenant)

    async def chain(self, tenant: str, response_id: str, max_bytes: int) -> list[ResponseRecord]:
        """The conversation that ends with a response, oldest first.

        Raises:
            RequestTooLarge: It has more than `max_bytes` bytes of input and output.
        """
        records: list[ResponseRecord] = []
        rest, size = response_id, 0
        while rest:
            query = ResponseChainQuery(tenant=tenant, response_id=rest)
            page = await self._call(subjects.RESPONSE_CHAIN, query, ResponseChain, tenant)
            records += page.records
            size += sum(len(one.input_items) + len(one.body) for one in page.records)
            if size > max_bytes:
                raise RequestTooLarge(
                    f"the conversation before {response_id!r} has more than {max_bytes} bytes "
                    "(RYZ_MAX_BODY_BYTES); begin a new one with a summary of it",
                    reason="conversation_size",
                )
            rest = page.rest
        return records[::-1]

    async def lease(
        self, tenant: str, response_id: str, *, takes_over: bool = False, gives_back: bool = False
    ) -> bool:
        """Takes or renews the lease of a response; returns False if another has it, or it has ended."""
        question = ResponseLease(
            tenant=tenant,
            response_id=response_id,
            owner=self._owner,
            lease_ms=0 if gives_back else self.lease_ms,
            takes_over=takes_over,
        )
        return (await self._call(subjects.RESPONSE_LEASE, question, ResponseLeased)).held

    async def claim(self, limit: int) -> list[ResponseName]:
        """Takes the leases of responses whose owners are gone."""
        question = ResponseClaim(owner=self._owner, lease_ms=self.lease_ms, limit=limit)
        return (await self._call(subjects.RESPONSE_CLAIM, question, ResponsesClaimed)).responses

    async def delete(self, tenant: str, response_id: str) -> None:
        """Deletes a response."""
        question = ResponseDelete(tenant=tenant, response_id=response_id)
        await self._call(subjects.RESPONSE_DELETE, question, ResponseDeleted, tenant)

    async def _call(self, subject: str, message: Wire, kind: type[M], turns_of: str = "") -> M:
        """Sends one call and reads its answer; `turns_of`: the tenant in whose queue it waits, if any."""
        headers = {subjects.HEADER_TENANT: turns_of} if turns_of else None
        with asking("the KV state service", "session_store"):
            return await call(
                self._bus,
                subject,
                message,
                kind,
                timeout_s=self._timeout_s,
                headers=headers,
                wait_s=self._wait_s,
            )
