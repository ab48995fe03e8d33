"""The bus over a NATS server, on top of nats-py.

nats-py does the protocol and the reconnecting. `delivery.py` hands out the messages, since nats-py's queue
and task for each subscription cost more and cancel running handlers at the end of a subscription.
"""

import asyncio
import math
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING

import nats.errors
import structlog

from shared.address import redact
from shared.bus.api import Handler, Message, ServedSubject, Subscription
from shared.bus.broker.connection import NatsConnection
from shared.bus.broker.flushes import Flushes, flush_twice
from shared.bus.broker.publish_command import payload_size, publish_command
from shared.bus.broker_address import BrokerAddress, not_allowed
from shared.bus.delivery import BusStats, Delivery
from shared.bus.nats_subscriptions import SubscriptionTable
from shared.bus.pending_replies import PendingReplies
from shared.bus.subject import broker_away, check_pattern, check_size, check_subject, not_sent
from shared.errors import Unavailable
from shared.flow.backoff import Backoff
from shared.tls import broker_context

if TYPE_CHECKING:  # the process that sends heartbeats does without it, and saves 12 MB
    from shared.settings import BusSettings

CLOSE_WAIT_S = 5.0

log = structlog.get_logger(__name__)


class NatsBus:
    """Implements `Bus`. Make one with `NatsBus.connect`.

    A lost connection is restored with its subscriptions, however long that takes, with back-off. Meanwhile
    `publish` raises instead of filling a buffer, so that its caller knows at once.
    """

    def __init__(self, address: BrokerAddress, *, name: str, connect_wait_s: float) -> None:
        self.stats = BusStats()
        self._address = address
        self._name = name
        self._connect_wait_s = connect_wait_s
        self._up = asyncio.Event()
        self._flushes = Flushes()
        self._restored_at = -math.inf
        self._closing = False
        self._backoff = Backoff()
        self._connection = self._new_connection()
        self._subscriptions = SubscriptionTable(self._up, lambda: self._connection)
        self._replies = PendingReplies(self._connection.new_inbox())
        self._reopening: asyncio.Task[None] | None = None

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        name: str,
        connect_wait_s: float = 10.0,
        inbox: str = "",
        tls: ssl.SSLContext | None = None,
        local: bool = False,
    ) -> "NatsBus":
        """Connects, for at most `connect_wait_s`.

        `BrokerAddress` describes `url`, `inbox`, `tls` and `local`. `name` is the connection's in the broker.

        Raises:
            InvalidRequest: The broker refuses the user or the password in the URL, or asks for one.
            Unavailable: No server answered in that time.
        """
        bus = cls(BrokerAddress(url, inbox, tls, local), name=name, connect_wait_s=connect_wait_s)
        opened, opening = False, asyncio.create_task(bus._open())
        refused = asyncio.create_task(bus._connection.refused.wait())
        try:
            await asyncio.wait(
                {opening, refused}, timeout=connect_wait_s, return_when=asyncio.FIRST_COMPLETED
            )
            if opening.done():
                await opening
                opened = True
                return bus
        finally:
            refused.cancel()
            if not opened:  # also if it is cancelled, or fails after the broker's greeting
                opening.cancel()
                await asyncio.wait({opening}, timeout=CLOSE_WAIT_S)
                await bus.close()
        if bus._connection.refused.is_set():
            raise not_allowed(url)
        raise broker_away(
            f"no NATS server answered at {redact(url)} within {connect_wait_s:g} s "
            f"({bus._connection.last_error or 'no answer'}); start one, or set RYZ_NATS_URL"
        )

    @classmethod
    async def from_settings(
        cls, settings: "BusSettings", *, name: str, url: str = "", connect_wait_s: float = 0.0
    ) -> "NatsBus":
        """Connects as the settings say; other arguments override them. Raises like `connect`."""
        return await cls.connect(
            url or settings.nats_url,
            name=name,
            connect_wait_s=connect_wait_s or settings.nats_connect_wait_s,
            inbox=settings.nats_inbox,
            tls=broker_context(settings.nats_ca, settings.nats_cert, settings.nats_key),
            local=settings.nats_local,
        )

    @property
    def max_payload(self) -> int:
        """See `Bus.max_payload`."""
        return int(self._connection.max_payload)

    @property
    def forbidden(self) -> tuple[str, ...]:
        """What the broker said of subjects that this user may not use, the newest messages."""
        return tuple(self._connection.forbidden)

    @property
    def connected(self) -> bool:
        """See `Bus.connected`."""
        return self._up.is_set() and self._connection.is_connected

    @property
    def restored_at(self) -> float:
        """See `Bus.restored_at`."""
        return self._restored_at

    @property
    def served(self) -> list[ServedSubject]:
        """What was handled on each subscription."""
        return self._subscriptions.served

    @property
    def num_pending(self) -> int:
        """Messages that wait for their handlers."""
        return self._subscriptions.num_pending

    def new_inbox(self) -> str:
        """See `Bus.new_inbox`."""
        return str(self._connection.new_inbox())

    def publish_now(
        self, subject: str, data: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> bool:
        """See `Bus.publish_now`."""
        command = self._checked(subject, data, reply, headers)
        if self._connection.is_behind:
            return False
        self.stats.published += 1
        self._connection.write_soon(command)
        return True

    async def publish(
        self, subject: str, data: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """See `Bus.publish`. It waits only while more than 2 MiB are on their way to a slow broker."""
        command = self._checked(subject, data, reply, headers)
        if self._connection.is_behind:
            await self._connection.wait_sent()
        self.stats.published += 1
        self._connection.write_soon(command)

    async def request(
        self, subject: str, data: bytes, *, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> Message:
        """See `Bus.request`."""
        if not self.connected:
            await self._wait_connected(timeout_s)
        reply, future = self._replies.expect()
        try:
            await self.publish(subject, data, reply=reply, headers=headers)
        except BaseException:
            self._replies.forget(reply)
            raise
        return await self._replies.wait(reply, future, subject, timeout_s)

    async def subscribe(
        self,
        subject: str,
        handler: Handler,
        *,
        queue: str = "",
        max_concurrent: int = 0,
        max_pending: int = 65_536,
        max_per_s: int = 0,
        sampled: bool = False,
    ) -> Subscription:
        """See `Bus.subscribe`."""
        check_pattern(subject)
        await self._wait_connected(self._connect_wait_s)
        delivery = Delivery(subject, handler, max_concurrent, max_pending, self.stats, sampled=sampled)
        subscription = await self._subscriptions.add(subject, queue, delivery, max_per_s)
        failed: Unavailable | None = None
        try:
            while not await self._flushes.flush(self._connection):  # the next connection restores it
                await self._wait_connected(self._connect_wait_s)
        except Unavailable as error:
            failed = error
        if failed is not None:
            await subscription.unsubscribe()
            raise failed
        return subscription

    async def flush(self) -> None:
        """See `Bus.flush`."""
        await self._wait_connected(self._connect_wait_s)
        if not await self._flushes.flush(self._connection):
            raise broker_away("the connection to the broker was lost")

    async def close(self) -> None:
        """See `Bus.close`."""
        if self._closing:
            return
        self._closing = True
        await self._subscriptions.close(CLOSE_WAIT_S)
        if self._reopening is not None:
            self._reopening.cancel()
            await asyncio.gather(*(self._reopening,), return_exceptions=True)
        if self.connected:
            try:
                await self.flush()
            except Unavailable as error:
                log.warning("flush at close failed", error=str(error))
        self._up.clear()
        self._replies.fail_all(broker_away("the bus was closed"))
        await self._connection.close()

    def _checked(self, subject: str, data: bytes, reply: str, headers: Mapping[str, str] | None) -> bytes:
        """Returns the command that publishes this; raises like `publish`."""
        check_subject(subject)
        if reply:
            check_subject(reply)
        command = publish_command(subject, reply, data, headers)
        connection = self._connection
        if len(command) > connection.max_payload:  # the line before the payload does not count
            check_size(subject, payload_size(data, headers), connection.max_payload)
        if not (self._up.is_set() and connection.is_connected):
            raise not_sent(subject)
        return command

    def _new_connection(self) -> NatsConnection:
        return NatsConnection(
            self._address, self.stats, self._backoff, on_up=self._went_up, on_down=self._went_down
        )

    async def _open(self) -> None:
        """Connects and restores the subscriptions."""
        await self._connection.start(self._name)
        await self._connection.listen(self._replies.pattern, "", self._replies.arrived)
        await self._subscriptions.restore()
        await flush_twice(self._connection)
        self._went_up()

    def _went_up(self) -> None:
        if self.stats.disconnects:
            self._restored_at = asyncio.get_running_loop().time()
        self.stats.connected = True
        self._up.set()

    def _went_down(self, *, final: bool) -> None:
        """Handles a broken connection; `final`: nats-py gave it up after an error of the broker."""
        self.stats.connected = False
        self._up.clear()
        self._flushes.end_all()
        if self._closing:
            return
        self.stats.disconnects += 1
        if final and self._reopening is None:
            self._reopening = asyncio.get_running_loop().create_task(self._reopen())

    async def _reopen(self) -> None:
        while True:
            await asyncio.sleep(self._backoff.next_s())
            self._connection = self._new_connection()
            try:
                await self._open()
                break
            except (nats.errors.Error, OSError) as error:
                log.warning("cannot connect", error=str(error))
            await self._connection.close()
        self._reopening = None

    async def _wait_connected(self, timeout_s: float) -> None:
        if self.connected:
            return
        if self._closing:
            raise broker_away("the bus was closed")
        try:
            await asyncio.wait_for(self._up.wait(), timeout_s)
        except TimeoutError:
            raise broker_away(f"no connection to the broker for {timeout_s:g} s") from None
