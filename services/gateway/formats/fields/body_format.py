"""Reads the bytes of a body into a checked model: the part that all formats have.

There are two readers: a strict and fast one, and a lenient one that only runs after the first has failed, to
find the field that holds a NaN.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from services.gateway.admission.bodies.json_shape import MAX_VALUES, NotJson, check_fields, read_json
from services.gateway.admission.caller import Caller
from services.gateway.admission.errors.refusals import HttpRefusal, invalid_body
from services.gateway.admission.request_headers import RawHeaders
from services.gateway.answering.call import Call
from services.gateway.answering.intake.new_calls import IdempotentCall, once_of, root_from
from services.gateway.formats.fields.body_types import RequestBody
from services.gateway.settings import GatewaySettings, SessionFrom
from shared.errors import InvalidRequest

B = TypeVar("B", bound=BaseModel)


def check_content_type(headers: Mapping[bytes, bytes]) -> None:
    """Checks that the body is announced as plain JSON, or that there is none.

    The page of another site can make a browser send any other type without asking this server first.

    Raises:
        HttpRefusal: 415, for another type or an encoding.
    """
    announced = headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if (kind or announced) and kind != b"application/json":
        raise HttpRefusal(
            415,
            "unsupported_media_type",
            f"set the header Content-Type: application/json, not {kind.decode('latin-1')[:64]!r}",
        )
    encoding = headers.get(b"content-encoding", b"identity").strip().lower()
    if encoding != b"identity":
        raise HttpRefusal(
            415,
            "unsupported_media_type",
            f"bodies are taken as they are, not with Content-Encoding {encoding.decode('latin-1')[:64]!r}",
        )


def parse_body(raw: bytes, kind: type[B], max_values: int = MAX_VALUES) -> B:
    """Parses a body.

    Raises:
        InvalidRequest: The body is wrong; names the field, or where the JSON breaks.
        RequestTooLarge: The body has more values than `max_values`.
    """
    try:
        value = read_json(raw, max_values=max_values)
    except NotJson as error:
        _explain_non_finite(raw, kind, max_values)
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
    return _validate(value, kind)


def _validate(value: Any, kind: type[B]) -> B:
    try:
        check_fields(value)  # first, since the validator collects every error before it raises one
        body = kind.model_validate(value)
    except ValidationError as error:
        raise invalid_body(error) from None
    if isinstance(body, RequestBody):
        body.note_unknown(value)
    return body


def _explain_non_finite(raw: bytes, kind: type[B], max_values: int) -> None:
    """Raises `InvalidRequest` if the only fault is a NaN or an infinity in a known field."""
    try:
        value = read_json(raw, finite=False, max_values=max_values)
    except NotJson:
        return
    _validate(value, kind)


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
        session_from: What stands for the session of a request that names none; see `GatewaySettings`.
    """

    request_id: str
    tenant: str
    headers: RawHeaders
    once: IdempotentCall | None = None
    root_key: bytes = b""
    drops_blocks: bool = True
    session_from: SessionFrom = "cache_key"

    def root_of(self, cache_key: str | None, user: str | None) -> str:
        """Returns the root hash that the caller's fields give a request without a session.

        Args:
            cache_key: The field `prompt_cache_key`.
            user: The field `user`, or its counterpart.

        Returns:
            Empty: how the conversation begins decides.
        """
        return root_from(self.session_from, self.tenant, cache_key, user, self.root_key)


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
        self._session_from: SessionFrom = settings.session_from
        self._make_plain = make_plain

    def translate(self, raw: bytes, caller: Caller) -> Call:
        """See `Format`."""
        once = once_of(caller.headers, caller.tenant, self.path, raw) if self.repeatable else None
        origin = CallOrigin(
            caller.request_id,
            caller.tenant,
            caller.headers,
            once,
            self._root_key,
            self._drops_blocks,
            self._session_from,
        )
        if self._make_plain is not None and len(raw) <= self._max_values:  # so many values at most
            call = self._make_plain(raw, origin)
            if call is not None:
                return call
        return self._make_call(parse_body(raw, self._body, self._max_values), origin)
