"""Streams whose client went away and asked for time to come back.

A parked stream is read on with nobody listening, so that it survives the loss of its group, until somebody
attaches to it (here or through another gateway), it ends, or its time is over and it is cancelled. A gateway
that stops lets go of them without a word: whoever comes back finds them at their leader.
"""

import asyncio
from contextlib import suppress

import structlog

from services.gateway.limits import Places
from services.gateway.metrics import GatewayMetrics
from shared.client import GenerationStream, InferenceClient
from shared.errors import RyzError

log = structlog.get_logger(__name__)


class StreamLeft(Exception):
    """The gateway stops, and leaves a stream to the one on which its client comes back."""


class Parking:
    """The parked streams of a gateway, each in one of its places; at most `limit` of them."""

    def __init__(self, client: InferenceClient, places: Places, metrics: GatewayMetrics, limit: int) -> None:
        self._client = client
        self._places = places
        self._metrics = metrics
        self._limit = limit
        self._parked: dict[asyncio.Task[None], GenerationStream] = {}
        self._stopping = False

    def __len__(self) -> int:
        return len(self._parked)

    def hold(self, stream: GenerationStream, grace_s: float) -> bool:
        """Takes a stream over from its request, unless there are too many."""
        if self._stopping:
            self.leave(stream)
            return True
        if len(self._parked) >= self._limit:
            return False
        self._places.take_over(1)
        task = asyncio.create_task(self._read_on(stream, grace_s))
        self._parked[task] = stream
        task.add_done_callback(self._freed)
        self._metrics.parked_streams.inc()
        return True

    def leave(self, stream: GenerationStream) -> None:
        """Lets go of a stream that runs on without this gateway."""
        self._client.forget(stream)

    def stop(self) -> None:
        """The gateway stops: nothing is parked from here on, and what is parked holds no place."""
        if not self._stopping:
            self._stopping = True
            self._places.free(len(self._parked))

    async def close(self) -> None:
        """Lets go of all streams."""
        self.stop()
        tasks = list(self._parked)
        for task, stream in tuple(self._parked.items()):
            self.leave(stream)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _freed(self, task: asyncio.Task[None]) -> None:
        del self._parked[task]
        self._metrics.parked_streams.dec()
        if not self._stopping:
            self._places.free(1)

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
