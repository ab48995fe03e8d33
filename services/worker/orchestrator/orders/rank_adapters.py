"""Joins the ranks' answers about adapters into one: an adapter is loaded when every rank has its share."""

import asyncio
from collections.abc import Sequence

import msgspec

from services.worker.orchestrator.rank_link import RankLink
from services.worker.rank_protocol.adapters import AdapterLoaded, LoadAdapter
from services.worker.rank_protocol.rank_messages import FrameKind, pack_frame


class RankAdapters:
    """Sends orders for adapters to all ranks, over the sockets of their steps, and joins their answers."""

    def __init__(self) -> None:
        self._orders: dict[int, tuple[asyncio.Future[AdapterLoaded], int, list[AdapterLoaded]]] = {}
        self._decode = msgspec.msgpack.Decoder(AdapterLoaded).decode

    def load_adapter(self, links: Sequence[RankLink], order: LoadAdapter) -> asyncio.Future[AdapterLoaded]:
        """Send the order to all ranks; the future gets their joined answer."""
        future: asyncio.Future[AdapterLoaded] = asyncio.get_running_loop().create_future()
        self._orders[order.order_id] = future, len(links), []
        frame = pack_frame(FrameKind.LOAD_ADAPTER, order)
        for link in links:
            link.send_frame(frame)
        return future

    def take_answer(self, body: bytes) -> None:
        """Take the answer of one rank."""
        answer = self._decode(body)
        found = self._orders.get(answer.order_id)
        if found is None:
            return  # the engine failed a moment ago
        future, count, answers = found
        answers.append(answer)
        if len(answers) < count:
            return
        del self._orders[answer.order_id]
        if not future.done():
            future.set_result(_together(answers))

    def fail_all(self, error: Exception) -> None:
        """End all orders with the error."""
        orders, self._orders = self._orders, {}
        for future, _, _ in orders.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # retrieved, so that asyncio does not warn


def _together(answers: Sequence[AdapterLoaded]) -> AdapterLoaded:
    """Join the ranks' answers: the sum of bytes, the longest time, the first error."""
    return AdapterLoaded(
        order_id=answers[0].order_id,
        num_bytes=sum(answer.num_bytes for answer in answers),
        seconds=max(answer.seconds for answer in answers),
        error=next((answer.error for answer in answers if answer.error), ""),
    )
