"""Answers `ryz.v1.complete.<model>`: one JSON body in, one JSON answer out, without streaming.

The body is that of an HTTP route, and the core answers it as one of HTTP, with the same keys, limits,
sessions and errors. A service outside needs no key: the broker vouches for its tenant.
"""

import asyncio
import json
import time
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import structlog

from services.gateway.admission.answer_headers import RATE_HEADERS
from services.gateway.admission.quota import Quota
from services.gateway.admission.rate_limits import RateLimiter
from services.gateway.admission.request_headers import CALL_HEADERS
from services.gateway.answering.direct_calls import DirectCalls
from services.gateway.settings import GatewaySettings
from shared import subjects
from shared.accounts.bus_users import check_bus_user
from shared.accounts.register import AccountRegister
from shared.bus import Bus, Message, Subscription
from shared.bus.subject import can_answer
from shared.errors import TABLE, DeadlineExceeded, Internal, InvalidRequest, RequestTooLarge, RyzError
from shared.lifecycle import Service
from shared.subjects import ANY_CALLER, HEADER_TIMEOUT, OutsideService
from shared.telemetry.service_levels import ServiceLevels
from shared.telemetry.trace_context import TRACE_HEADERS

log = structlog.get_logger(__name__)

ROUTES = {
    "messages": "/v1/chat/completions",
    "prompt_token_ids": "/v1/chat/completions",
    "prompt": "/v1/completions",
    "input": "/v1/embeddings",
}  # by the field that only this route's body has
STATUS, ERROR_CODE, ERROR_TEXT = "Ryz-Status", "Nats-Service-Error-Code", "Nats-Service-Error"
PASSED_ON = frozenset(("authorization", *(name.decode() for name in CALL_HEADERS), *TRACE_HEADERS))
RETURNED = (
    (b"x-session-id", "X-Session-Id"),
    (b"x-request-id", "X-Request-Id"),
    (b"x-ryz-ignored", "X-Ryz-Ignored"),
    (b"idempotent-replayed", "Idempotent-Replayed"),
    (b"retry-after", "Retry-After"),
    *((name, name.decode()) for name in (*RATE_HEADERS, b"x-ryz-limits")),
)
MAX_WAITING = 256  # messages that wait for one of `max_concurrent` handlers
HEADERS_ROOM = 4096  # bytes of the reply's headers
MAX_ERROR_TEXT = 200
_MAX_MS = 10**9
_LATER_S = 1.0  # between the limit of a call and that of the other side, so that always the same one answers


class CompleteCalls:
    """Serves the calls of all callers.

    Args:
        bus: Where they come from.
        direct: Runs them.
        settings: Time limits, and how many calls may run at once.
        levels: Count the calls that are refused here; the routes count all others.
        accounts: Has the bus users.
    """

    def __init__(
        self,
        bus: Bus,
        direct: DirectCalls,
        settings: GatewaySettings,
        levels: ServiceLevels,
        accounts: AccountRegister,
    ) -> None:
        self._bus = bus
        self._direct = direct
        self._levels = levels
        self._accounts = accounts
        self._settings = settings
        self._subscriptions: list[Subscription] = []
        # one service outside may not take all places, and its calls are counted before they are read
        self._slots = Quota(settings.max_concurrent, share=settings.tenant_share)
        burst = max(1, int(settings.outside_rps))
        self._rates = RateLimiter(rate=settings.outside_rps, burst=burst)

    async def start(self) -> None:
        """Subscribes, as one of the gateways."""
        for subject in (subjects.complete_all(), subjects.complete_all(ANY_CALLER)):
            self._subscriptions.append(
                await self._bus.subscribe(
                    subject,
                    self._answer,
                    queue=subjects.GATEWAY_QUEUE,
                    max_concurrent=self._settings.max_concurrent,
                    max_pending=MAX_WAITING,
                )
            )

    async def stop(self) -> None:
        """Takes no more calls; those that came go on."""
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            await subscription.drain()

    async def _answer(self, message: Message) -> None:
        caller = subjects.caller_of(message.subject)
        if not can_answer(message.reply, caller):
            return  # there is no place for an answer, or it is another caller's
        user, slots, asked = caller.user if caller is not None else "", 0, False
        try:
            if user:
                self._rates.take_units(user, time.monotonic())
                self._slots.take_units(user, 1)
                slots = 1
            if caller is not None:
                check_bus_user(self._accounts, caller, time.time())
            path, body = translate_call(message)
            given = call_headers(message)
            timeout_s, asked = self._take_limit(message, given), True
            status, body, headers = await self._complete(caller, path, body, given, timeout_s)
            if len(body) + HEADERS_ROOM > self._bus.max_payload:
                raise RequestTooLarge(
                    f"the answer has {len(body)} bytes and a message of the broker at most "
                    f"{self._bus.max_payload}: set `max_tokens`, or stream (docs/client.md)"
                )
        except RyzError as error:
            if not asked:
                model = subjects.name_in(message.subject.rpartition(".")[2])
                self._levels.count_refusal(model, caller.tenant if caller is not None else "", error)
            status, body, headers = TABLE[error.code].http_status, _error_body(error), {}
        finally:
            self._slots.free_units(user, slots)
        headers[STATUS] = str(status)
        if status >= 400:
            headers[ERROR_CODE], headers[ERROR_TEXT] = str(status), _error_text(body)
        try:
            await self._bus.publish(message.reply, body, headers=headers)
        except RyzError as error:
            log.warning("answer not delivered", subject=message.subject, error=error.message)

    async def _complete(
        self,
        caller: OutsideService | None,
        path: str,
        body: bytes,
        given: dict[bytes, bytes],
        timeout_s: float,
    ) -> tuple[int, bytes, dict[str, str]]:
        tenant = caller.tenant if caller is not None else ""
        address = ("bus", 0) if caller is None else (f"bus user {caller.user}", 0)
        try:
            async with asyncio.timeout(timeout_s):
                form = self._direct.formats[path]
                answer = await self._direct.run_whole(form, body, given, tenant=tenant, client=address)
        except TimeoutError as error:
            raise DeadlineExceeded(f"no whole answer within {timeout_s:g} s") from error
        if not answer.body:
            raise Internal("the answer broke off; send the request again")
        found = {
            name: answer.headers[key].decode("latin-1") for key, name in RETURNED if key in answer.headers
        }
        return answer.status, answer.body, found

    def _take_limit(self, message: Message, headers: dict[bytes, bytes]) -> float:
        """Returns the seconds after which the call is given up here.

        A limit in the bus's own header is added to the headers for the core, in which the others are: in
        `X-Request-Timeout`, in the body, or the default.
        """
        given = message.headers.get(HEADER_TIMEOUT)
        if given is None:
            return self._settings.max_timeout_s + _LATER_S
        if not given.isascii() or not given.isdigit() or not 0 < int(given[:12]) <= _MAX_MS:
            raise InvalidRequest(
                f"`{HEADER_TIMEOUT}` is a number of milliseconds above 0", param=HEADER_TIMEOUT
            )
        limit_s = min(int(given) / 1000, self._settings.max_timeout_s)
        headers.setdefault(b"x-request-timeout", b"%g" % (limit_s + _LATER_S))
        return limit_s


def call_headers(message: Message) -> dict[bytes, bytes]:
    """The headers of a message that the core reads, with names of HTTP in lower case.

    Raises:
        InvalidRequest: One comes twice, in different letters.
    """
    found: dict[bytes, bytes] = {}
    for name, value in message.headers.items():
        lower = name.lower()
        if lower not in PASSED_ON:
            continue
        key = lower.encode()
        if key in found:
            raise InvalidRequest(f"the header {lower} came twice; send it once", param=lower)
        found[key] = value.encode("utf-8", "surrogateescape")
    return found


def translate_call(message: Message) -> tuple[str, bytes]:
    """Returns the route for a call and the body for it.

    Raises:
        InvalidRequest: The body is not JSON, fits no route, asks for a stream, or names another model.
    """
    model = subjects.name_in(message.subject.rpartition(".")[2])
    try:
        body: Any = msgspec.json.decode(message.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the message is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise InvalidRequest("the message has to be a JSON object: the body of a chat completion")
    fields = [name for name in ROUTES if name in body]
    if len(fields) != 1:
        raise InvalidRequest(
            "the message needs exactly one of `messages` and `prompt_token_ids` (chat), `prompt` (text) and "
            "`input` (embeddings)",
            param="messages",
        )
    if body.get("stream"):
        raise InvalidRequest(
            "one reply has no room for a stream: leave `stream` out, or stream as docs/client.md shows",
            param="stream",
        )
    if body.get("background"):
        raise InvalidRequest("`background` is served by /v1/responses only", param="background")
    if body.setdefault("model", model) != model:
        raise InvalidRequest(
            f"the subject names model {model!r} and the body another one: leave `model` out", param="model"
        )
    return ROUTES[fields[0]], msgspec.json.encode(body)


def _error_body(error: RyzError) -> bytes:
    kind = TABLE[error.code].openai_type
    return msgspec.json.encode(
        {
            "error": {
                "message": error.message,
                "type": kind,
                "param": error.data.get("param"),
                "code": error.code,
            }
        }
    )


def _error_text(body: bytes) -> str:
    """The code and the beginning of the message, as a header may hold them."""
    try:
        error = json.loads(body)["error"]
        text = f"{error.get('code')}: {error.get('message')}"
    except (ValueError, KeyError, TypeError, AttributeError):
        text = "internal"
    return "".join(c if " " <= c <= "~" else "?" for c in text[:MAX_ERROR_TEXT])


async def serve_complete_calls(calls: CompleteCalls, service: Service, stack: AsyncExitStack) -> None:
    """Serves them until the service drains."""
    await calls.start()
    service.on_drain(calls.stop)
    stack.push_async_callback(calls.stop)
