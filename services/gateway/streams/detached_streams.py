"""Streams whose client went away and asked for time to come back.

A parked stream is read on with nobody listening, so that it survives the loss of its group, until somebody
attaches to it (here or through another gateway), it ends, or its time is over and it is cancelled. A gateway
that stops lets go of them without a word: whoever comes back finds them at their leader.
"""

import asyncio
from contextlib import suppress

import structlog

from services.gateway.http.quota import Quota
from services.gateway.metrics import GatewayMetrics
from shared.client import GenerationStream, InferenceClient
from shared.errors import RyzError

log = structlog.get_logger(__name__)


class StreamLeft(Exception):
    """The gateway stops, and leaves a stream to the one on which its client comes back."""


class Parking:
    """The parked streams of a gateway, each in one of its tenant's places.

    spaces: how many there may be, of all and of one tenant.
    """

    def __init__(
        self, client: InferenceClient, places: Quota, metrics: GatewayMetrics, spaces: Quota
    ) -> None:
        self._client = client
        self._places = places
        self._metrics = metrics
        self._spaces = spaces
        self._parked: dict[asyncio.Task[None], GenerationStream] = {}
        self._stopping = False

    def __len__(self) -> int:
        return len(self._parked)

    def hold(self, stream: GenerationStream, grace_s: float) -> bool:
        """Takes a stream over from its request, unless there are too many, of all or of its tenant."""
        if self._stopping:
            self.leave(stream)
            return True
        tenant = stream.request.tenant
        try:
            self._spaces.take(tenant)
        except RyzError:
            return False
        self._places.take_over(tenant)
        task = asyncio.create_task(self._read_on(stream, grace_s))
        self._parked[task] = stream
        task.add_done_callback(self._freed)
        self._metrics.parked_streams.inc()
        return True

    def leave(self, stream: GenerationStream) -> None:
        """Lets go of a stream that runs on without this gateway."""
        self._client.leave(stream)

    def stop(self) -> None:
        """The gateway stops: nothing is parked from here on, and what is parked holds no place."""
        if not self._stopping:
            self._stopping = True
            for stream in self._parked.values():
                self._places.free(stream.request.tenant)

    async def close(self) -> None:
        """Lets go of all streams."""
        self.stop()
        tasks = list(self._parked)
        for task, stream in tuple(self._parked.items()):
            self.leave(stream)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _freed(self, task: asyncio.Task[None]) -> None:
        tenant = self._parked.pop(task).request.tenant
        self._spaces.free(tenant)
        self._metrics.parked_streams.dec()
        if not self._stopping:
            self._places.free(tenant)

    async def _read_on(self, stream: GenerationStream, grace_s: float) -> None:
        try:
            with suppress(RyzError):  # however it ends, there is nobody to be told
                async with asyncio.timeout(grace_s):
                    while await stream.next_frame() is not None:
                        pass
        except TimeoutError:
            self._metrics.expired_streams.inc()
            log.debug("nobody came back to a stream", request_id=stream.request_id, grace_s=grace_s)
        except asyncio.CancelledError:
            return  # left: it is not cancelled
        await stream.cancel("its client did not come back")
        self._client.forget(stream)
