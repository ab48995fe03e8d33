"""The part of a format that reads bodies: the same for all but for a model and a function."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel

from services.gateway.admission.caller import Caller
from services.gateway.admission.request_headers import RawHeaders
from services.gateway.answering.call import Call
from services.gateway.answering.intake.idempotency import IdempotentCall, once_of
from services.gateway.formats.fields.body_parser import parse_body
from services.gateway.settings import GatewaySettings

B = TypeVar("B", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class CallOrigin:
    """What a call has beside its body.

    Attributes:
        request_id: The id of the request as it travels.
        tenant: Whose call it is.
        headers: Headers of the request.
        once: What its `Idempotency-Key` says, if it has one.
        root_key: The secret behind new session ids; see `root_key.py`.
        drops_blocks: Blocks that change with each request are left out; see `left_out.py`.
    """

    request_id: str
    tenant: str
    headers: RawHeaders
    once: IdempotentCall | None = None
    root_key: bytes = b""
    drops_blocks: bool = True


class BodyFormat(Generic[B]):
    """Implements `Format.translate`.

    Args:
        body: Model of the bodies.
        make_call: Makes the call of a checked body; raises `InvalidRequest` if a field is wrong.
        settings: Limits of a body.
        root_key: The secret behind new session ids.
        make_plain: Makes the call of bytes, as `make_call` would of the body in them; returns None if the
            body needs full validation.
    """

    path: str  # of the route
    repeatable = True  # a call with an `Idempotency-Key` counts once

    def __init__(
        self,
        body: type[B],
        make_call: Callable[[B, CallOrigin], Call],
        settings: GatewaySettings,
        root_key: bytes = b"",
        make_plain: Callable[[bytes, CallOrigin], Call | None] | None = None,
    ) -> None:
        self._body = body
        self._make_call = make_call
        self._max_values = settings.constants.max_body_values
        self._root_key = root_key
        self._drops_blocks = settings.leave_out_changing_blocks
        self._make_plain = make_plain

    def translate(self, raw: bytes, caller: Caller) -> Call:
        """See `Format`."""
        once = once_of(caller.headers, caller.tenant, self.path, raw) if self.repeatable else None
        origin = CallOrigin(
            caller.request_id, caller.tenant, caller.headers, once, self._root_key, self._drops_blocks
        )
        if self._make_plain is not None and len(raw) <= self._max_values:  # so many values at most
            call = self._make_plain(raw, origin)
            if call is not None:
                return call
        return self._make_call(parse_body(raw, self._body, self._max_values), origin)
