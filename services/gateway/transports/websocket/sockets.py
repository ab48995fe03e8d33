"""The application of `/v1/realtime`: admits connections, finds their tenants, and serves them."""

import time

from starlette.types import Receive, Scope, Send

from services.gateway.admission.errors.refusals import HttpRefusal
from services.gateway.admission.held_slots import SOCKET_EVICTED, HeldSlot, HeldSlots
from services.gateway.answering.context import GatewayContext
from services.gateway.answering.direct_calls import DirectCalls
from services.gateway.transports.websocket.client_key import chosen_subprotocol, key_of, speaks_openai
from services.gateway.transports.websocket.connection import POLICY, ConnectionLimits, RealtimeConnection
from services.gateway.transports.websocket.refusals import refuse_socket
from services.gateway.transports.websocket.request_run import SocketOrigin
from services.gateway.transports.websocket.server_messages import not_openai
from shared.errors import RyzError
from shared.telemetry.trace_context import TRACE_HEADERS
from shared.web.admitted_connection import CONNECTION

PATH = "/v1/realtime"
_TRACES = frozenset(name.encode() for name in TRACE_HEADERS)


class RealtimeSockets:
    """All connections.

    Args:
        context: What all requests of the gateway share.
        direct: Runs calls.
    """

    def __init__(self, context: GatewayContext, direct: DirectCalls) -> None:
        self._context = context
        self._direct = direct
        quota = context.admission.parties.quota(
            context.settings.sockets_max, what="WebSockets", reason="realtime_sockets"
        )
        self._slots = HeldSlots(quota, SOCKET_EVICTED)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        context, started_s, headers = self._context, time.monotonic(), dict(scope["headers"])
        offered: list[str] = scope.get("subprotocols", [])
        client = scope.get("client")
        caller: SocketOrigin | None = None
        slot: HeldSlot | None = None

        def log_in(authorization: bytes) -> SocketOrigin:
            identity = context.admission.identities.find(authorization, client)
            if slot is not None:
                slot.move(context.admission.parties.party_of(identity.tenant, client))
            carried = [(name, value) for name, value in scope["headers"] if name in _TRACES]
            grace_s = min(context.settings.realtime_grace_s, context.settings.stream_max_grace_s)
            return SocketOrigin(identity, carried, client, grace_s)

        try:
            context.admission.check_accepting()
            key = key_of(headers, offered)
            identities = context.admission.identities
            if key or identities.is_open or not identities.is_known:
                caller = log_in(key)
            slot = self._slots.take(scope[CONNECTION], self._party_of(caller, client))
        except (RyzError, HttpRefusal) as error:
            await refuse_socket(send, error, context.metrics, PATH)
            return
        try:
            await receive()  # that the client connects
            await send({"type": "websocket.accept", "subprotocol": chosen_subprotocol(offered)})
            if speaks_openai(headers, scope["query_string"]):
                await send({"type": "websocket.send", "text": not_openai().decode()})
                await send({"type": "websocket.close", "code": POLICY, "reason": "not OpenAI's Realtime API"})
                return
            limits = ConnectionLimits(context.settings, context.settings.write_timeout_s)
            connection = RealtimeConnection(
                self._direct,
                send,
                limits,
                context.metrics,
                slot=slot,
                log_in=log_in,
                caller=caller,
            )
            with context.metrics.realtime_sockets.track_inprogress():
                await connection.serve(receive, headers.get(b"x-session-id", b"").decode("latin-1"))
        finally:
            slot.free()
            context.metrics.count_answer(PATH, 101, time.monotonic() - started_s)

    def _party_of(self, caller: SocketOrigin | None, client: tuple[str, int] | None) -> str:
        """For whom a connection counts; one that brings no key yet counts for its address."""
        parties = self._context.admission.parties
        return (
            parties.address_party(client)
            if caller is None
            else parties.party_of(caller.identity.tenant, client)
        )
