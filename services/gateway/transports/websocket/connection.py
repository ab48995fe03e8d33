"""One WebSocket: reads messages, runs their requests side by side, and sends what they answer in one line.

A client that does not read holds up its own requests only: each waits until its last event is taken, and its
route, its generation and its leader wait in turn, within their bounds. It is told when it reads again, and is
cut off when it does not for too long; its streams can then be resumed on another connection.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog
from starlette.types import Receive, Send

from services.gateway.admission.errors.refusals import HttpRefusal, answer_for
from services.gateway.admission.held_slots import HeldSlot
from services.gateway.answering.direct_calls import DirectCalls
from services.gateway.metrics import GatewayMetrics
from services.gateway.settings import GatewaySettings
from services.gateway.transports.websocket import server_messages
from services.gateway.transports.websocket.client_messages import (
    Authenticate,
    BadMessage,
    CancelRequest,
    RequestMessage,
    Resume,
    UseSession,
    read_message,
)
from services.gateway.transports.websocket.request_run import RequestRun, SocketOrigin
from shared.errors import Conflict, InvalidRequest, RateLimited, RyzError

SLOW_S = 1.0  # a client that took so long to read is told
NORMAL, GOING_AWAY, POLICY, TRY_LATER = 1000, 1001, 1008, 1013
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of one connection.

    Attributes:
        settings: Those of the door.
        write_timeout_s: How long the client may take to read a message.
    """

    settings: GatewaySettings
    write_timeout_s: float

    def shown(self) -> dict[str, int | float]:
        """As the client is told."""
        settings = self.settings
        return {
            "requests": settings.constants.realtime_requests_max,
            "idle_s": settings.constants.realtime_idle_s,
            "grace_s": settings.realtime_grace_s,
            "write_timeout_s": self.write_timeout_s,
        }


class RealtimeConnection:
    """One connection that was accepted.

    Args:
        direct: Runs calls.
        send: Sends messages of ASGI.
        limits: Its bounds.
        metrics: Counts clients that do not read.
        slot: Its place, for which it says when requests are under way.
        log_in: Finds the caller that a key stands for; raises `HttpRefusal`.
        caller: Known already; None: the first message brings the key.
    """

    def __init__(
        self,
        direct: DirectCalls,
        send: Send,
        limits: ConnectionLimits,
        metrics: GatewayMetrics,
        *,
        slot: HeldSlot,
        log_in: Callable[[bytes], SocketOrigin],
        caller: SocketOrigin | None,
    ) -> None:
        self._direct = direct
        self._asgi_send = send
        self._limits = limits
        self._metrics = metrics
        self._slot = slot
        self._log_in = log_in
        self._caller = caller
        self._session_id = ""
        self._line = asyncio.Lock()  # of messages that wait to be sent
        self._time = asyncio.get_running_loop().time
        self._heard_s = self._time()
        self._runs: dict[str, tuple[RequestRun, asyncio.Task[None]]] = {}
        self._cancelled: set[str] = set()
        self._closing: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def serve(self, receive: Receive, session_id: str = "") -> None:
        """Serves the client until it leaves, or until the connection is closed."""
        self._session_id = session_id
        reading = asyncio.create_task(self._read(receive))
        watching = asyncio.create_task(self._watch())
        try:
            first: set[asyncio.Future[Any]] = {reading, watching, self._closing}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks = [reading, watching, *(task for _, task in self._runs.values())]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        code = self._closing.result() if self._closing.done() else 0
        if code:
            with suppress(Exception):
                async with asyncio.timeout(1.0):
                    await self._asgi_send({"type": "websocket.close", "code": code})

    async def _read(self, receive: Receive) -> None:
        if self._caller is not None:
            await self._send_ready(self._caller)
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text")
            raw = message.get("bytes") or b"" if text is None else text.encode()
            del message, text  # a connection that waits for its next message does not hold the last one
            self._heard_s = self._time()
            try:
                await self._take(raw)
                del raw
            except TimeoutError:
                self._close(TRY_LATER)
                return
            except OSError:  # the client has left
                return
            except Exception as error:
                log.error("a message was not handled", exc_info=error)
                self._close(1011)
                return

    async def _take(self, raw: bytes) -> None:
        """Handles one message; every fault of it is answered."""
        try:
            message = read_message(raw)
            if isinstance(message, Authenticate) or self._caller is None:
                await self._authenticate(message)
            elif isinstance(message, RequestMessage | Resume):
                await self._begin(message, self._caller)
            elif isinstance(message, CancelRequest):
                self._cancel(message.id)
            elif isinstance(message, UseSession):
                self._session_id = message.session_id
            else:
                await self._send(server_messages.PONG)
        except BadMessage as bad:
            await self._send_error(bad.error, bad.request_id)
        except (RyzError, HttpRefusal) as error:
            named = getattr(message, "id", "")
            await self._send_error(error, named)

    async def _authenticate(self, message: object) -> None:
        if not isinstance(message, Authenticate):
            await self._send_error(HttpRefusal(401, "missing_api_key", "send your key first, by `auth`"))
            self._close(POLICY)
            return
        if self._caller is not None:
            raise InvalidRequest("the connection has a key already", param="type")
        try:
            self._caller = self._log_in(b"Bearer " + message.api_key.encode("latin-1", "replace"))
        except (RyzError, HttpRefusal) as error:
            await self._send_error(error)
            self._close(POLICY)
            return
        await self._send_ready(self._caller)

    async def _begin(self, message: RequestMessage | Resume, caller: SocketOrigin) -> None:
        most = self._limits.settings.constants.realtime_requests_max
        if message.id in self._runs or len(self._runs) >= most:
            await self._wait_for_endings(message.id)
        if message.id in self._runs:
            raise Conflict(f"a request {message.id!r} runs on this connection", param="id")
        if len(self._runs) >= most:
            raise RateLimited(
                f"{most} requests may run on one connection; wait for one, or open another connection",
                reason="realtime_requests",
            )
        run = RequestRun(self._direct, caller, message, self._session_id)
        self._slot.begin_request()
        task = asyncio.create_task(self._run(message.id, run))
        self._runs[message.id] = run, task
        await asyncio.sleep(
            0
        )  # it runs now: a `cancel` that came with it would end a task before its first step

    async def _wait_for_endings(self, request_id: str) -> None:
        """Waits for the run of this id, or for any, if its last message is being sent.

        The client may have read that message already: for it the request has ended.
        """
        named = self._runs.get(request_id)
        runs = self._runs.values() if named is None else [named]
        ending = [task for run, task in runs if run.ending]
        if ending:
            await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED)

    async def _run(self, request_id: str, run: RequestRun) -> None:
        try:
            await run.answer(self._send)
        except TimeoutError:  # the client does not read
            self._close(TRY_LATER)
        except asyncio.CancelledError:
            if request_id not in self._cancelled:
                raise  # the connection ends; its streams wait for their clients
            await self._end_cancelled(request_id, run)
        except OSError:  # the client has left, which `_read` is told
            pass
        except Exception as error:
            log.error("request failed", route="/v1/realtime", exc_info=error)
            with suppress(TimeoutError, OSError):
                await self._send_error(error, request_id, run)
        finally:
            self._runs.pop(request_id, None)
            self._cancelled.discard(request_id)
            self._slot.end_request()
            self._heard_s = self._time()

    def _cancel(self, request_id: str) -> None:
        found = self._runs.get(request_id)
        if found is None or found[0].ending:
            raise HttpRefusal(404, "request_not_found", f"no request {request_id!r} runs on this connection")
        if request_id not in self._cancelled:
            self._cancelled.add(request_id)
            found[1].cancel()

    async def _end_cancelled(self, request_id: str, run: RequestRun) -> None:
        try:
            await run.end_stream()
            await self._send(server_messages.cancelled(request_id), run)
        except TimeoutError:
            self._close(TRY_LATER)
        except OSError:  # the client has left
            pass
        except Exception as error:
            log.error("a request was not cancelled", exc_info=error)

    async def _watch(self) -> None:
        """Closes the connection if no key comes, or if nothing happens on it for too long."""
        settings = self._limits.settings
        if self._caller is None:
            await asyncio.sleep(settings.constants.realtime_auth_s)
            if self._caller is None:
                self._close(POLICY)
                return
        while True:
            left_s = self._heard_s + settings.constants.realtime_idle_s - self._time()
            if left_s <= 0 and not self._runs:
                self._close(GOING_AWAY)
                return
            await asyncio.sleep(max(left_s, 0.05) if not self._runs else settings.constants.realtime_idle_s)

    async def _send_ready(self, caller: SocketOrigin) -> None:
        await self._send(server_messages.ready(caller.identity.tenant, self._limits.shown()))

    async def _send_error(
        self, error: Exception, request_id: str = "", last_of: RequestRun | None = None
    ) -> None:
        answer = answer_for(error)
        await self._send(server_messages.error(answer.status, answer.body, request_id), last_of)

    async def _send(self, text: bytes, last_of: RequestRun | None = None) -> None:
        """Sends one message, the last one of `last_of`; raises `TimeoutError` if the client does not read."""
        limit_s = self._limits.write_timeout_s
        async with self._line:
            if last_of is not None:
                last_of.ending = True
            began_s = self._time()
            async with asyncio.timeout(limit_s):
                await self._asgi_send({"type": "websocket.send", "text": text.decode()})
            waited_s = self._time() - began_s
            if waited_s > SLOW_S:
                self._metrics.realtime_slow.inc()
                message = server_messages.slow(waited_s, limit_s)
                async with asyncio.timeout(limit_s):
                    await self._asgi_send({"type": "websocket.send", "text": message.decode()})
        self._metrics.response_bytes.inc(len(text))

    def _close(self, code: int) -> None:
        if code == TRY_LATER:
            self._metrics.slow_readers.inc()
        if not self._closing.done():
            self._closing.set_result(code)
