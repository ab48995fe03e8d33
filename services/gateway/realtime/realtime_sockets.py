"""The application of `/v1/realtime`: admits connections, finds their tenants, and serves them."""

import time

from starlette.types import Receive, Scope, Send

from services.gateway.http.errors import HttpRefusal
from services.gateway.http.quota import Quota
from services.gateway.http.serving_route import GatewayContext
from services.gateway.http.socket_refusals import refuse_socket
from services.gateway.inner.inner_calls import InnerCalls
from services.gateway.realtime.client_key import chosen_subprotocol, key_of
from services.gateway.realtime.realtime_connection import ConnectionLimits, RealtimeConnection
from services.gateway.realtime.request_run import Caller
from shared.errors import RyzError
from shared.telemetry.trace_context import TRACE_HEADERS

PATH = "/v1/realtime"
_TRACES = frozenset(name.encode() for name in TRACE_HEADERS)


class RealtimeSockets:
    """All connections.

    Args:
        context: What all requests of the gateway share.
        inner: Calls its routes.
    """

    def __init__(self, context: GatewayContext, inner: InnerCalls) -> None:
        settings = context.settings
        share = settings.tenant_share if context.keyring.num_tenants > 1 else 1.0
        self._context = context
        self._inner = inner
        self._places = Quota(
            settings.realtime_sockets_max, share=share, what="WebSockets", reason="realtime_sockets"
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        context, started_s, headers = self._context, time.monotonic(), dict(scope["headers"])
        offered: list[str] = scope.get("subprotocols", [])
        # a client that brings no key yet counts for its address
        key, party = key_of(headers, offered), f"address {(scope.get('client') or ('',))[0]}"
        caller, placed = None, False

        def log_in(authorization: bytes) -> Caller:
            nonlocal party
            tenant = context.keyring.tenant(authorization)
            if placed:
                self._move_place(party, tenant)
            party = tenant
            carried = [(name, value) for name, value in scope["headers"] if name in _TRACES]
            grace_s = min(context.settings.realtime_grace_s, context.settings.stream_max_grace_s)
            return Caller(tenant, carried, scope.get("client"), grace_s)

        try:
            context.check_accepting()
            if key or context.keyring.is_open:
                caller = log_in(key)
            self._places.take_units(party)
            placed = True
        except (RyzError, HttpRefusal) as error:
            await refuse_socket(send, error, context.metrics, PATH)
            return
        try:
            await receive()  # that the client connects
            await send({"type": "websocket.accept", "subprotocol": chosen_subprotocol(offered)})
            limits = ConnectionLimits(context.settings, context.settings.write_timeout_s)
            connection = RealtimeConnection(
                self._inner, send, limits, context.metrics, log_in=log_in, caller=caller
            )
            with context.metrics.realtime_sockets.track_inprogress():
                await connection.serve(receive, headers.get(b"x-session-id", b"").decode("latin-1"))
        finally:
            self._places.free_units(party)
            context.metrics.count_answer(PATH, 101, time.monotonic() - started_s)

    def _move_place(self, party: str, tenant: str) -> None:
        """Counts a connection for its tenant, once that is known; raises like `Quota.take_units`."""
        self._places.free_units(party)
        try:
            self._places.take_units(tenant)
        except RyzError:
            self._places.take_over_units(party)
            raise
