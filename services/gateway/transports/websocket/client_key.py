"""Finds the key of a client that opens a WebSocket: in a header, or, from browsers, a subprotocol. Pure."""

import base64
import binascii
from collections.abc import Sequence
from urllib.parse import parse_qs

from services.gateway.admission.auth import given_key
from services.gateway.admission.errors.refusals import HttpRefusal
from services.gateway.admission.request_headers import RawHeaders

SUBPROTOCOL = "ryz.realtime.v1"
_KEY = "ryz.key."  # before the key in base64url, without padding
_KEY_OF_OPENAI = "openai-insecure-api-key."
_OPENAI_NAMES = frozenset({"model", "call_id", "intent"})  # in the address


def key_of(headers: RawHeaders, subprotocols: Sequence[str]) -> bytes:
    """The key as the value of an `Authorization` header; empty if the client gave none.

    Raises:
        HttpRefusal: Several subprotocols have a key.
    """
    key = headers.get(b"x-api-key", b"").strip() or b""
    if key:
        return b"Bearer " + key
    if found := given_key(headers, ""):
        return found
    named = [name for name in subprotocols if name.startswith((_KEY, _KEY_OF_OPENAI))]
    if len(named) > 1:
        raise HttpRefusal(400, "ambiguous_request", "several subprotocols have a key; offer one of them")
    for name in named:
        if name.startswith(_KEY):
            return b"Bearer " + _decoded(name.removeprefix(_KEY))
        return b"Bearer " + name.removeprefix(_KEY_OF_OPENAI).encode("latin-1", "replace")
    return b""


def chosen_subprotocol(subprotocols: Sequence[str]) -> str | None:
    """The subprotocol of the connection; None if the client offers none that is known."""
    return next((name for name in (SUBPROTOCOL, "realtime") if name in subprotocols), None)


def speaks_openai(headers: RawHeaders, query: bytes) -> bool:
    """Whether a client expects OpenAI's Realtime API: its address or a header has what that API asks for."""
    named = parse_qs(query.decode("latin-1"), keep_blank_values=True)
    beta = headers.get(b"openai-beta", b"")
    return not _OPENAI_NAMES.isdisjoint(named) or b"realtime" in beta


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return b"-"  # no key: refused like one that is not known
