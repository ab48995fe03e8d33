"""Makes, reads and checks session files. Pure.

A file is a JSON object (`FORMAT`, version `VERSION`) with the conversation, its token ids, the name of the
model and the fingerprint of its weights. `sha256` is that of all other fields in canonical form: keys sorted,
no blanks, UTF-8, minimal escapes (RFC 8785 without fractions). KV is not in the file: it follows from the
tokens and the weights.
"""

import json
from hashlib import sha256
from typing import Annotated, Any

import msgspec

from services.gateway.admission.bodies.json_shape import MAX_FIELDS, MAX_VALUES, NotJson, read_json
from shared.client.calls.model_list import not_served, offered_state
from shared.codec import pack_tokens, unpack_tokens
from shared.errors import Conflict, InvalidRequest, RequestTooLarge
from shared.messages import ChatMessage, ModelCard, ModelList, SessionRecord
from shared.messages.base import ModelName, SessionId
from shared.messages.sessions import MAX_SESSION_MESSAGES

FORMAT = "ryzanstein.session"
VERSION = 1
# JSON needs up to 16 bytes for a token id of 4 bytes (one on each line), and up to 6 for a letter. Files that
# are larger than that are mostly blanks or control characters.
BYTES_PER_RECORD_BYTE = 4
PART = 4096  # entries of a list that one call encodes; no other thread runs during such a call
_VALUE_SETTINGS = "RYZ_SESSION_MAX_BYTES"

_TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
_Whole = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]  # integers that every JSON reader keeps exactly


class SessionFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a file.

    Attributes:
        model_fingerprint: The weights that served the session when it was exported; empty if none did.
        token_ids: Prompt and answer of the last turn.
    """

    session_id: SessionId
    model: ModelName
    model_fingerprint: str = ""
    messages: list[ChatMessage]
    token_ids: list[_TokenId] = []
    turns: _Whole = 0
    created_ms: _Whole = 0
    updated_ms: _Whole = 0
    exported_ms: _Whole = 0


def dump_session(record: SessionRecord, fingerprint: str, now_ms: int) -> bytes:
    """Makes the file of a session; `fingerprint` is empty if its model is not served."""
    content = SessionFile(
        session_id=record.session_id,
        model=record.model,
        model_fingerprint=fingerprint,
        messages=record.messages,
        token_ids=unpack_tokens(record.token_ids),
        turns=record.turns,
        created_ms=record.created_ms,
        updated_ms=record.updated_ms,
        exported_ms=now_ms,
    )
    fields = _fields({"format": FORMAT, "format_version": VERSION, **msgspec.to_builtins(content)})
    fields["sha256"] = _encoded(sha256(_canonical(fields)).hexdigest())
    return _canonical(fields) + b"\n"


def max_values(record_bytes: int, of_a_body: int) -> int:
    """The most JSON values of a session's file; each takes four bytes or more in its record."""
    return min(of_a_body, record_bytes // 4 + MAX_FIELDS)


def read_session(raw: bytes, max_values: int = MAX_VALUES) -> SessionFile:
    """Reads and checks a file.

    Raises:
        RequestTooLarge: It has more values than a body may have, or more messages than a session may have.
        InvalidRequest: It is cut, altered, of another version, or no session file; `reason` says which
            (`file_cut`, `file_altered`, `file_version`, `file_format`).
    """
    try:
        document = read_json(raw, max_values=max_values, settings=_VALUE_SETTINGS)
    except NotJson as error:
        if "EOF" in str(error):
            raise _wrong("file_cut", "its end is missing; export it again, or copy it again") from None
        raise _wrong("file_format", f"it is not valid JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise _wrong("file_format", f"it has no `format` of {FORMAT!r}")
    version = document.get("format_version")
    if version != VERSION or isinstance(version, bool):
        raise _wrong(
            "file_version",
            f"it has version {_shown(version)} of the format, and this gateway reads version {VERSION}",
        )
    messages = document.get("messages")
    if isinstance(messages, list) and len(messages) > MAX_SESSION_MESSAGES:
        raise RequestTooLarge(
            f"the session has {len(messages)} messages, and may have {MAX_SESSION_MESSAGES}: leave out the "
            "oldest, or begin a new session with a summary of them",
            reason="session_messages",
        )
    if not _is_small(document):
        raise _wrong("file_format", f"it has an object of more than {MAX_FIELDS} fields, or a long number")
    given = document.pop("sha256", None)
    if given is None or given != _digest(document):
        raise _wrong("file_altered", "its content does not fit its `sha256`: it was altered after its export")
    try:
        return msgspec.convert(document, SessionFile)
    except msgspec.ValidationError as error:
        raise _wrong("file_format", str(error)) from None


def served_by(content: SessionFile, known: ModelList) -> ModelCard:
    """The served model that can continue the session: of the same weights, by the same name if possible.

    For a file without a fingerprint the name alone decides.

    Raises:
        Conflict: There is none; names the model of the file and those served.
        Unavailable: A group of the model's name is known and none is ready, or no group of any model is.
    """
    cards = known.models
    if not cards:
        raise not_served(content.model, known)
    fingerprint = content.model_fingerprint
    alike = [
        card
        for card in cards
        if (card.fingerprint == fingerprint if fingerprint else card.name == content.model)
    ]
    for card in sorted(alike, key=lambda card: card.name != content.model):
        return card
    is_ready = any(card.name == content.model for card in cards)
    may_come = content.model in known.away or offered_state(content.model, known) is not None
    if may_come and not is_ready:  # it may be the one with these weights
        raise not_served(content.model, known)
    served = ", ".join(f"{card.name!r} ({_print(card.fingerprint)})" for card in cards)
    raise Conflict(
        f"the session belongs to the model {content.model!r} ({_print(fingerprint)}), and what is served "
        f"here is {served}: import it where a model with the same weights is served, quantized as there",
        reason="other_model",
        model=content.model,
        fingerprint=fingerprint,
    )


def imported_record(
    content: SessionFile, tenant: str, session_id: str, card: ModelCard, now_ms: int
) -> SessionRecord:
    """The record of the session that an import begins, new at `now_ms`.

    Raises:
        RequestTooLarge: It has more tokens than the model's context, so no turn can have computed them.
    """
    if len(content.token_ids) > card.context_length:
        raise RequestTooLarge(
            f"the session has {len(content.token_ids)} token ids, and the context of the model {card.name!r} "
            f"holds {card.context_length}: it was not made by that model as it is served here",
            reason="session_tokens",
        )
    return SessionRecord(
        session_id=session_id,
        tenant=tenant,
        model=card.name,
        version=1,
        messages=content.messages,
        token_ids=pack_tokens(content.token_ids),
        turns=content.turns,
        created_ms=now_ms,
        updated_ms=now_ms,
    )


def _canonical(fields: dict[str, bytes]) -> bytes:
    """A document in canonical form, from its encoded fields."""
    return b"{" + b",".join(_encoded(name) + b":" + fields[name] for name in sorted(fields)) + b"}"


def _fields(document: dict[str, Any]) -> dict[str, bytes]:
    return {name: _field(value) for name, value in document.items()}


def _field(value: Any) -> bytes:
    if not isinstance(value, list) or len(value) <= PART:
        return _encoded(value)
    parts = (_encoded(value[start : start + PART])[1:-1] for start in range(0, len(value), PART))
    return b"[" + b",".join(parts) + b"]"


def _encoded(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _is_small(document: dict[str, Any]) -> bool:
    """Returns whether its objects and numbers are small, so that sorting and printing them is fast."""
    found: list[Any] = [document]
    while found:
        one = found.pop()
        if isinstance(one, dict):
            if len(one) > MAX_FIELDS:
                return False
            one = one.values()
        for value in one:
            if isinstance(value, dict | list):
                found.append(value)
            elif isinstance(value, int) and value.bit_length() > 64:
                return False
    return True


def _digest(document: dict[str, Any]) -> str | None:
    try:
        return sha256(_canonical(_fields(document))).hexdigest()
    except (ValueError, RecursionError):  # texts or depths that no exported file has
        return None


def _shown(version: Any) -> str:
    """An unknown version for an error message; shortened, and of other types only the name."""
    return str(version)[:32] if isinstance(version, int | float | str) else f"({type(version).__name__})"


def _print(fingerprint: str) -> str:
    return f"fingerprint {fingerprint}" if fingerprint else "no fingerprint"


def _wrong(reason: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"this is no session file that can be imported: {problem}", reason=reason)
