"""Open gRPC calls: those without a request under way give way to new ones, as idle connections of HTTP do.

A call may stay open for long without a message, and grpcio counts it among those that may run. When all
places are taken, or all of a party, the call that has been idle longest ends with UNAVAILABLE.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from grpc_reflection.v1alpha.reflection import aio as reflection

from services.gateway.admission.errors.refusals import HttpRefusal
from services.gateway.admission.held_slots import HeldSlot, HeldSlots
from services.gateway.admission.identity.identities import Identities
from services.gateway.admission.parties import Parties
from services.gateway.transports.grpc.serving.call_failures import failure_of
from services.gateway.transports.grpc.serving.call_metadata import headers_of, peer_address
from services.gateway.transports.grpc.serving.context import Context
from shared.errors import RyzError, Unavailable

CALL_EVICTED = Unavailable(
    "the call was idle, and another one needed its place; call again", reason="gave_way", retry_after_s=1.0
)


class _OpenCall:
    """A call as the holder of a place; it ends by the cancellation of the task that handles it."""

    def __init__(self) -> None:
        self.was_evicted = False
        task = asyncio.current_task()
        assert task is not None
        self.task: asyncio.Task[Any] = task

    def begin_request(self) -> None:
        """See `SlotHolder`."""

    def end_request(self) -> None:
        """See `SlotHolder`."""

    def evict(self, reason: str) -> None:
        """See `SlotHolder`."""
        self.was_evicted = True
        self.task.cancel()


class OpenCalls:
    """The places of all calls.

    Args:
        identities: Find who makes a call.
        parties: Find for whom it counts.
        limit: How many calls may be open.
    """

    def __init__(self, identities: Identities, parties: Parties, limit: int) -> None:
        self._identities = identities
        self._parties = parties
        quota = parties.quota(limit, what="open gRPC calls", reason="grpc_calls")
        self._slots = HeldSlots(quota, "grpc_gave_way")

    @contextmanager
    def open(self, context: Context) -> Iterator[HeldSlot]:
        """The place of a call, idle until its request begins.

        Raises:
            RyzError: There is no place.
            Unavailable: It was idle and gave way.
        """
        call = _OpenCall()
        slot = self._slots.take(call, self._party_of(context))
        try:
            yield slot
        except asyncio.CancelledError:
            if call.was_evicted and call.task.uncancel() == 0:
                raise CALL_EVICTED from None
            raise
        finally:
            slot.free()

    def _party_of(self, context: Context) -> str:
        client = peer_address(context.peer())
        given = headers_of(context.invocation_metadata() or (), single=False).get(b"authorization", b"")
        try:
            return self._parties.party_of(self._identities.find(given).tenant, client)
        except (HttpRefusal, RyzError):  # a method that needs no key
            return self._parties.address_party(client)


class Reflection(reflection.ReflectionServicer):
    """The reflection service, whose calls have places."""

    def __init__(self, calls: OpenCalls, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._calls = calls

    async def ServerReflectionInfo(  # type: ignore[override]  # the stubs take a generator for a coroutine
        self, request_iterator: Any, unused_context: Any
    ) -> AsyncIterator[Any]:
        """See the service; a call is idle between two questions."""
        failure: RyzError | None = None
        answers: Any = super().ServerReflectionInfo(request_iterator, unused_context)
        try:
            with self._calls.open(unused_context):
                async for answer in answers:
                    yield answer
        except RyzError as error:
            failure = error
        if failure is not None:
            failed = failure_of(failure)
            await unused_context.abort(failed.status, failed.message, tuple(failed.trailing))
