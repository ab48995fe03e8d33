"""Listens to vLLM's KV events over ZeroMQ, and never takes a restart for continuity.

vLLM numbers its batches from 0 on after each start, and says nothing of which start it is. So a number alone
shows neither a restart nor its absence: after one, the next number that comes may be the one that was
expected. What shows it is the last batch itself. At each doubt (a new connection, a gap, a number that came
before) the batches from that one on are asked for again; if it is there with the same bytes, which contain a
time, the stream has gone on. If not, the cache is another one and is built anew from the first batch that
vLLM still keeps.
"""

import asyncio
from collections import OrderedDict
from hashlib import blake2b

import structlog
import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from services.worker.guests.kv_events.batches import BadBatch, decode_batch
from services.worker.guests.kv_events.contents import VllmContents

log = structlog.get_logger(__name__)
REPLAY_S = 5.0  # between two batches of a replay
END_SEQ = (-1).to_bytes(8, "big", signed=True)
RECEIVE_LIMIT = 100_000  # batches that may wait, as many as vLLM lets wait
MAX_DIGESTS = 10_000  # of batches that may come a second time: as many as vLLM sends again
_CONNECTION = zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED


class VllmKVSubscriber:
    """Feeds `VllmContents` from one vLLM engine.

    Args:
        contents: Is reset when the engine was started anew.
        endpoint: Where vLLM publishes, such as `tcp://127.0.0.1:5557`.
        replay_endpoint: Where it sends batches again; empty: each doubt makes the cache unknown.
        topic: The prefix of its topic.

    Attributes:
        num_batches: Batches that were applied.
        num_resets: How often the cache became another one, or unknown.
    """

    def __init__(
        self, contents: VllmContents, endpoint: str, replay_endpoint: str = "", *, topic: str = ""
    ) -> None:
        self._contents = contents
        self._endpoint = endpoint
        self._replay_endpoint = replay_endpoint
        self._topic = topic
        self._context = zmq.asyncio.Context()
        self._last: int | None = None  # number of the batch that was applied last
        self._digests: OrderedDict[int, bytes] = OrderedDict()
        self._in_doubt = False
        self.num_batches = 0
        self.num_resets = 0

    async def run_forever(self) -> None:
        """Listens until cancelled."""
        socket = self._context.socket(zmq.SUB)
        socket.setsockopt(zmq.RCVHWM, RECEIVE_LIMIT)
        socket.setsockopt_string(zmq.SUBSCRIBE, self._topic)
        monitor = socket.get_monitor_socket(_CONNECTION)
        poller = zmq.asyncio.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(monitor, zmq.POLLIN)
        try:
            socket.connect(self._endpoint)
            while True:
                ready = dict(await poller.poll())
                frames = await socket.recv_multipart() if socket in ready else None
                # after the batch: what happened to the connection before it came is known by now
                connected = await self._read_monitor(monitor)
                if self._in_doubt and (connected or frames is not None):
                    await self._resolve()
                if frames is not None:
                    await self._take(frames)
        finally:
            socket.disable_monitor()
            socket.close(linger=0)
            self._context.destroy(linger=0)

    async def _read_monitor(self, monitor: zmq.asyncio.Socket) -> bool:
        """Doubts the stream after each change of the connection; returns whether there is one now."""
        connected = False
        while await monitor.poll(0):
            event = await recv_monitor_message(monitor)
            self._in_doubt = True
            connected = event["event"] == zmq.EVENT_CONNECTED
        return connected

    async def _take(self, frames: list[bytes]) -> None:
        """Takes a batch of the subscription."""
        if len(frames) != 3 or len(frames[1]) != 8:
            log.warning("a KV event of the guest has another form", frames=len(frames))
            return
        seq, payload = int.from_bytes(frames[1], "big"), frames[2]
        if self._last is not None:
            if self._digests.get(seq) == _digest(payload):
                return  # it came in a replay already
            if seq != self._last + 1:
                await self._resolve()
                if self._digests.get(seq) == _digest(payload):
                    return
        if self._last is not None and seq != self._last + 1:
            self._reset("batches are missing")
        self._apply(seq, payload)

    async def _resolve(self) -> None:
        """Finds out whether the stream has gone on, and catches up."""
        self._in_doubt = False
        last = self._last
        batches = await self._replay(last or 0)
        if last is not None:
            if batches and batches[0][0] == last and _digest(batches[0][1]) == self._digests[last]:
                del batches[0]
            else:
                self._reset("no replay" if batches is None else "the engine was started anew")
                batches = await self._replay(0) if batches is not None else None
        for seq, payload in batches or ():
            if self._last is not None and seq != self._last + 1:
                self._reset("a replay has a gap")
            self._apply(seq, payload)

    async def _replay(self, first: int) -> list[tuple[int, bytes]] | None:
        """Returns the batches from that number on that vLLM keeps; None if it does not answer."""
        if not self._replay_endpoint:
            return None
        batches: list[tuple[int, bytes]] = []
        socket = self._context.socket(zmq.DEALER)  # a new one each time: nothing of an older replay is in it
        try:
            socket.connect(self._replay_endpoint)
            await socket.send_multipart([b"", first.to_bytes(8, "big")])
            while True:
                async with asyncio.timeout(REPLAY_S):
                    frames = await socket.recv_multipart()
                seq, payload = frames[-2:]
                if seq == END_SEQ:
                    return batches
                batches.append((int.from_bytes(seq, "big"), payload))
        except TimeoutError:
            log.warning("the guest does not send KV events again", endpoint=self._replay_endpoint)
            return None
        finally:
            socket.close(linger=0)

    def _apply(self, seq: int, payload: bytes) -> None:
        self._last = seq
        self._digests[seq] = _digest(payload)
        if len(self._digests) > MAX_DIGESTS:
            self._digests.popitem(last=False)
        self.num_batches += 1
        try:
            events = decode_batch(payload)
        except BadBatch as error:
            # what it said is not known, so neither is the cache
            log.warning("a KV event of the guest cannot be read", seq=seq, error=str(error))
            self._contents.reset()
            self.num_resets += 1
            return
        self._contents.apply(events)

    def _reset(self, why: str) -> None:
        log.info("the guest's KV cache is taken for empty", why=why)
        self._last = None
        self._digests.clear()
        self._contents.reset()
        self.num_resets += 1


def _digest(payload: bytes) -> bytes:
    return blake2b(payload, digest_size=16).digest()
