"""Joins the ranks' answers about KV blocks and the store into one.

A block is stored when every rank has written its heads, and fetched when every rank has read them. Messages
go over the ranks' KV sockets, so they do not wait for a step.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from services.worker.orchestrator.process_group_manager import RankProcess
from services.worker.orchestrator.rank_link import RankLink
from services.worker.rank_protocol.kv_messages import FetchBlocks, FetchResult, StoreBlock, StoreResult
from services.worker.rank_protocol.rank_messages import FrameKind, pack_frame
from shared import kv_hash


class _Fetch:
    """A running fetch, and the answers of the ranks so far."""

    def __init__(self) -> None:
        self.future: asyncio.Future[FetchResult] = asyncio.get_running_loop().create_future()
        self.answers: list[FetchResult] = []


class RankBlocks:
    """Sends orders for KV blocks to all ranks and joins their answers.

    Args:
        on_lost: Called with a rank and a reason when its KV socket ends.
    """

    def __init__(self, on_lost: Callable[[RankProcess, str], None]) -> None:
        self._on_stored: Callable[[StoreResult], None] | None = None
        self._on_lost = on_lost
        self._links: list[RankLink] = []
        self._fetches: dict[int, _Fetch] = {}
        self._copies: dict[
            bytes, tuple[int, bool]
        ] = {}  # number of ranks that have not answered; True if one failed
        self._fetched = msgspec.msgpack.Decoder(FetchResult)
        self._stored = msgspec.msgpack.Decoder(StoreResult)

    def attach_ranks(self, processes: Sequence[RankProcess]) -> None:
        """Listen to started ranks; those without a KV socket have no store."""
        self._links = [
            RankLink(process, self._on_frame, self._on_end, process.kv_sock)
            for process in processes
            if process.kv_sock is not None
        ]

    def fetch_blocks(self, order: FetchBlocks) -> asyncio.Future[FetchResult]:
        """Send the order to all ranks; the answer has the smallest count of all ranks."""
        fetch = self._fetches[order.fetch_id] = _Fetch()
        frame = pack_frame(FrameKind.FETCH, order)
        for link in self._links:
            link.send_frame(frame)
        return fetch.future

    def watch_store(self, on_stored: Callable[[StoreResult], None] | None) -> None:
        """Call `on_stored` with joined results of copies (`Engine.watch_store`); None: drop them."""
        self._on_stored = on_stored

    def expect_copies(self, copies: Sequence[StoreBlock]) -> None:
        """Note that a plan with these copies is being sent to the ranks."""
        for copy in copies:
            self._copies[copy.name] = (len(self._links), False)

    def detach_ranks(self, error: Exception) -> None:
        """Stop listening; running fetches end with the error, and copies get no answer."""
        for link in self._links:
            link.close()
        self._links = []
        self._copies.clear()
        fetches, self._fetches = self._fetches, {}
        for fetch in fetches.values():
            if not fetch.future.done():
                fetch.future.set_exception(error)
                fetch.future.exception()  # retrieved, so that asyncio does not warn

    def _on_frame(self, process: RankProcess, kind: FrameKind, body: bytes) -> None:
        if kind is FrameKind.FETCHED:
            self._take_fetched(self._fetched.decode(body))
        elif kind is FrameKind.STORED:
            self._take_stored(self._stored.decode(body))

    def _on_end(self, process: RankProcess, reason: str) -> None:
        self._on_lost(process, f"rank {process.rank} closed its KV socket{reason and f': {reason}'}")

    def _take_fetched(self, answer: FetchResult) -> None:
        fetch = self._fetches.get(answer.fetch_id)
        if fetch is None:
            return
        fetch.answers.append(answer)
        if len(fetch.answers) < len(self._links):
            return
        del self._fetches[answer.fetch_id]
        if not fetch.future.done():
            fetch.future.set_result(_together(fetch.answers))

    def _take_stored(self, answer: StoreResult) -> None:
        names, dropped = list[bytes](), list[bytes]()
        answers = [(name, False) for name in kv_hash.split(answer.names)]
        answers += [(name, True) for name in kv_hash.split(answer.dropped)]
        for name, failed_here in answers:
            left, failed_before = self._copies.pop(name, (0, False))
            failed = failed_here or failed_before
            if left > 1:
                self._copies[name] = (left - 1, failed)
            elif left == 1:
                (dropped if failed else names).append(name)
        if self._on_stored is not None:
            together = msgspec.structs.replace(answer, names=b"".join(names), dropped=b"".join(dropped))
            self._on_stored(together)


def _together(answers: Sequence[FetchResult]) -> FetchResult:
    """Join the ranks' answers: the fewest blocks, the sum of bytes, the longest time."""
    fewest = min(answers, key=lambda answer: answer.count)
    return FetchResult(
        fetch_id=fewest.fetch_id,
        count=fewest.count,
        num_bytes=sum(answer.num_bytes for answer in answers),
        seconds=max(answer.seconds for answer in answers),
        missing=fewest.missing,
        corrupt=b"".join(answer.corrupt for answer in answers),
        error=next((answer.error for answer in answers if answer.error), ""),
        from_host=min(answer.from_host for answer in answers),
    )
