"""Streams whose client went away and asked for time to come back: they are parked.

A parked stream is read on, so that it survives the loss of its group. It ends when a client attaches to it
(here or through another gateway), when it is complete, or when its time is over: then it is cancelled. A
gateway that stops leaves its parked streams running, and clients find them at their leaders.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import structlog

from services.gateway.admission.caller import Claim
from services.gateway.admission.limits.call_limits import CallLimits
from services.gateway.admission.quota import Quota
from services.gateway.metrics import GatewayMetrics
from shared.client import GenerationStream
from shared.errors import RyzError
from shared.messages import GenerateRequest

log = structlog.get_logger(__name__)


class DetachedStreams:
    """The parked streams of a gateway, each in one of its tenant's places.

    Args:
        slots: Places of requests under way.
        metrics: Counts parked and expired streams.
        spaces: How many streams may be parked, of all tenants and of one.
        limits: Parked streams count among the running requests of their tenants and keys.
    """

    def __init__(self, slots: Quota, metrics: GatewayMetrics, spaces: Quota, limits: CallLimits) -> None:
        self._slots = slots
        self._limits = limits
        self._metrics = metrics
        self._spaces = spaces
        self._parked: dict[asyncio.Task[None], GenerationStream] = {}
        self._claims: dict[asyncio.Task[None], Claim] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._stopping = False

    def __len__(self) -> int:
        return len(self._parked)

    def park_stream(self, stream: GenerationStream, grace_s: float) -> bool:
        """Takes a stream over from its request.

        Returns:
            False if too many streams are parked, of all parties or of this one.
        """
        if self._stopping:
            self.leave_stream(stream)
            return True
        party = stream.request.party_or_tenant
        try:
            self._spaces.take_units(party)
        except RyzError:
            return False
        self._slots.take_over_units(party)
        task = asyncio.create_task(self._read_on(stream, grace_s))
        self._parked[task] = stream
        self._claims[task] = self._limits.hold_running(stream.request.tenant, stream.request.key_id)
        task.add_done_callback(self._unpark)
        self._metrics.parked_streams.inc()
        return True

    def leave_stream(self, stream: GenerationStream) -> None:
        """Lets a stream run on without this gateway."""
        stream.leave()

    def stop_parking(self) -> None:
        """Parks no more streams, and frees the places of those that are parked: the gateway stops."""
        if not self._stopping:
            self._stopping = True
            for stream in self._parked.values():
                self._slots.free_units(stream.request.party_or_tenant)

    def end_streams(self, is_meant: Callable[[GenerateRequest], bool]) -> int:
        """Ends parked streams whose requests are meant, also at their leaders; returns how many."""
        meant = [stream for stream in self._parked.values() if is_meant(stream.request)]
        for stream in meant:
            task = asyncio.create_task(stream.cancel("its key was revoked"))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        return len(meant)

    async def close(self) -> None:
        """Leaves all streams running."""
        self.stop_parking()
        tasks = list(self._parked)
        for task, stream in tuple(self._parked.items()):
            self.leave_stream(stream)
            task.cancel()
        await asyncio.gather(*tasks, *self._ending, return_exceptions=True)

    def _unpark(self, task: asyncio.Task[None]) -> None:
        party, claim = self._parked.pop(task).request.party_or_tenant, self._claims.pop(task)
        self._spaces.free_units(party)
        self._metrics.parked_streams.dec()
        if not self._stopping:
            self._slots.free_units(party)
            self._limits.give_back(claim)  # else the stream runs on, and its lease ends by itself

    async def _read_on(self, stream: GenerationStream, grace_s: float) -> None:
        try:
            with suppress(RyzError):  # no client is there to be told
                async with asyncio.timeout(grace_s):
                    while await stream.next_frame() is not None:
                        pass
        except TimeoutError:
            self._metrics.expired_streams.inc()
            log.debug(
                "a client did not come back to its stream", request_id=stream.request_id, grace_s=grace_s
            )
        except asyncio.CancelledError:
            return  # the stream was left: it is not cancelled
        await stream.cancel("its client did not come back")
        stream.forget()
