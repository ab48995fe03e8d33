"""Which turns' answers have not reached their callers, as far as gateways say: a turn that comes again then
takes the place of the one whose answer was lost.

Only gateways confirm, and they say so in the request; the turns of all other callers count as delivered. What
is not known any more (the leader was another one, too many sessions since) counts as delivered, too: a turn
that is there twice does less harm than one that is lost.
"""

import asyncio
from collections import OrderedDict

from services.worker.leader.replies import Replies
from shared import codec
from shared.bus.api import Message
from shared.errors import InvalidRequest
from shared.messages import Delivered, GenerateRequest

MAX_SESSIONS = 10_000
CONFIRM_S = 0.25  # how long the word of a gateway may take that has the end of an answer


class Deliveries:
    """The last turn of each session whose answer is on its way. `on_delivered` handles the gateways' word."""

    def __init__(self, replies: Replies, confirm_s: float = CONFIRM_S) -> None:
        self._replies = replies
        self._confirm_s = confirm_s
        self._open: OrderedDict[tuple[str, str], tuple[str, asyncio.Event]] = OrderedDict()

    def expect(self, request: GenerateRequest) -> None:
        """The turn has ended, and its answer is sent."""
        if request.session is None:
            return
        key = (request.tenant, request.session.session_id)
        self._open.pop(key, None)
        if request.confirms:
            self._open[key] = request.request_id, asyncio.Event()
            if len(self._open) > MAX_SESSIONS:
                self._open.popitem(last=False)

    async def was_lost(self, tenant: str, session_id: str, request_id: str) -> bool:
        """Whether the answer of a session's last turn has not reached its caller; gives it a moment."""
        found = self._open.get((tenant, session_id))
        if found is None or found[0] != request_id:
            return False
        try:
            async with asyncio.timeout(self._confirm_s):
                await found[1].wait()
        except TimeoutError:
            return True
        return False

    async def on_delivered(self, message: Message) -> None:
        """A gateway is about to send the last of an answer to a caller that is still there."""
        try:
            told = codec.decode(message.data, Delivered)
        except InvalidRequest as error:
            await self._replies.undecodable(message, error)
            return
        key = (told.tenant, told.session_id)
        found = self._open.get(key)
        if found is not None and found[0] == told.request_id:
            found[1].set()
            del self._open[key]
