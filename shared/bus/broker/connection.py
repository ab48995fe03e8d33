"""One nats-py connection with our hooks: direct delivery, counted errors, reconnecting with back-off.

How messages are read and written is in `direct_client.py`. Both override private methods of nats-py's
client that its releases have not changed for years (`_process_pong`, `_flush_pending`, `_read_loop`, `_ps`);
the tests of the bus fail if a new release changes them.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import nats.errors
import structlog
from nats.aio.transport import TcpTransport

from shared.bus.accounts import user_of
from shared.bus.broker.direct_client import FLUSH_WAIT_S, DirectClient
from shared.bus.broker.direct_transport import DirectTransport
from shared.bus.broker_address import BrokerAddress
from shared.bus.delivery import BusStats
from shared.flow.backoff import Backoff
from shared.host.tcp_table import distrust

CONNECT_TIMEOUT_S = 2
PING_INTERVAL_S = 5  # after two pings without an answer the connection is given up
_REFUSED = "authorization violation"
_FORBIDDEN = "permissions violation"
MAX_FORBIDDEN = 16  # newest messages about subjects that the user may not use
_FOREIGN_REMEDY = (
    "end that process, or let the broker run as this user; where /proc/net/tcp cannot be read, set "
    "RYZ_NATS_LOCAL=false if all users of this machine are trusted"
)

log = structlog.get_logger(__name__)


class OnDown(Protocol):
    """Called when the connection broke; `final` if nats-py will not restore it."""

    def __call__(self, *, final: bool) -> None:
        """See the class."""
        ...


class NatsConnection(DirectClient):
    """A connection with counted errors that is made again with back-off, to no other broker than it should.

    Args:
        backoff: Pauses between attempts to connect.
        on_up: Called when a lost connection is restored.
        on_down: Called when the connection broke.

    Attributes:
        refused: Set when the broker does not accept the user or the password.
    """

    def __init__(
        self,
        address: BrokerAddress,
        stats: BusStats,
        backoff: Backoff,
        *,
        on_up: Callable[[], None],
        on_down: OnDown,
    ) -> None:
        super().__init__()
        self._address = address
        self._inbox_prefix = bytearray(address.inbox_prefix.encode())  # inboxes are made before connecting
        self._refusals = 0
        self._given_up = False
        self._trusted = not address.local  # whether the password may be sent; see `_require_own_broker`
        self.refused = asyncio.Event()
        self.forbidden: deque[str] = deque(maxlen=MAX_FORBIDDEN)
        self._bus_stats = stats
        self._backoff = backoff
        self._on_up = on_up
        self._on_down = on_down

    async def start(self, name: str) -> None:
        """Connects; it tries until it is cancelled."""
        await self.connect(
            self._address.servers,
            name=name,
            inbox_prefix=self._address.inbox_prefix,
            tls=self._address.tls,
            error_cb=self._failed,
            disconnected_cb=self._disconnected,
            reconnected_cb=self._restored,
            closed_cb=self._gave_up,
            connect_timeout=CONNECT_TIMEOUT_S,
            reconnect_time_wait=0.1,  # type: ignore[arg-type]
            max_reconnect_attempts=-1,
            reconnect_to_server_handler=self._choose_server,
            ping_interval=PING_INTERVAL_S,
            flush_timeout=FLUSH_WAIT_S,
            skip_subject_validation=True,  # the bus has checked them
        )
        self._backoff.reset()

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> Any:
        # nats-py would go on in the clear, password included
        if initial_connection and self._address.needs_tls and not info.get("tls_required"):
            raise nats.errors.Error("the broker speaks no TLS, which RYZ_NATS_URL or RYZ_NATS_CA asks for")
        if initial_connection and self._address.local:
            await self._require_own_broker()
        return await super()._process_info(info, initial_connection)

    async def _require_own_broker(self) -> None:
        # after the greeting, so the socket has an owner, and before CONNECT, which carries the password
        writer = getattr(self._transport, "_io_writer", None)
        peer, own = (writer and writer.get_extra_info(name) for name in ("peername", "sockname"))
        why = (
            await distrust(peer[:2], own[:2]) if peer and own else "this kind of connection shows no address"
        )
        if not why:
            self._trusted = True
            return
        self._bus_stats.foreign_brokers += 1
        if self._bus_stats.foreign_brokers.bit_count() == 1:  # at 1, 2, 4, 8, ...: it may go on for long
            log.error("nothing is sent to a broker that is not ours", why=why,
                      times=self._bus_stats.foreign_brokers, remedy=_FOREIGN_REMEDY)  # fmt: skip
        raise nats.errors.Error(f"nothing is sent to a broker that is not ours: {why} (RYZ_NATS_LOCAL)")

    async def _connect_to_server(self, server: Any) -> None:
        self._trusted = not self._address.local
        await super()._connect_to_server(server)
        if type(self._transport) is TcpTransport:
            self._transport = DirectTransport(self._transport)

    async def _process_connect_init(self) -> None:
        try:
            await super()._process_connect_init()
        except BaseException:  # nats-py leaves the socket of an attempt that was refused to the collector
            if self._transport is not None:
                self._transport.close()  # type: ignore[no-untyped-call, unused-ignore]
            raise

    def _choose_server(self, servers: list[Any], _: dict[str, Any]) -> tuple[Any, float]:
        return random.choice(servers), self._backoff.next_s()

    async def _failed(self, error: Exception) -> None:
        self._bus_stats.errors += 1
        if _REFUSED in str(error).lower():
            self._refusals += 1
            self.refused.set()
            if self._refusals.bit_count() == 1:  # at 1, 2, 4, 8, ...: it may go on for long
                log.error("the broker refuses user or password", user=user_of(self._address.url),
                          times=self._refusals, remedy="correct RYZ_NATS_URL")  # fmt: skip
        elif _FORBIDDEN in str(error).lower():
            # the error names the subject; nothing will ever arrive there
            self.forbidden.append(str(error))
            log.warning(
                "the broker forbids it to this user", error=str(error), user=user_of(self._address.url)
            )
        elif self.is_connected:
            log.warning("bus error", error=str(error) or type(error).__name__)
        else:
            log.debug("bus error while disconnected", error=str(error) or type(error).__name__)

    async def _disconnected(self) -> None:
        if self.is_closed:
            return
        log.warning("connection to the broker lost")
        self._on_down(final=False)

    async def _restored(self) -> None:
        self._bus_stats.reconnects += 1
        self._backoff.reset()
        log.info("connection to the broker restored")
        self._on_up()

    async def _gave_up(self) -> None:
        self._given_up = True
        self._on_down(final=True)

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        if not self._trusted:  # nats-py would send pending data to the broker that is not trusted
            self._pending, self._pending_data_size = [], 0
        # an error or a cancellation in there would close the connection without calling `on_down`
        try:
            await super()._close(status, do_cbs)
        except ConnectionError:  # lost while nats-py sent the last bytes, which leaves the transport open
            if self._transport is not None:
                self._transport.close()  # type: ignore[no-untyped-call, unused-ignore]
        finally:
            if do_cbs and not self._given_up:
                await self._gave_up()
