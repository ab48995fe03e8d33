"""`/v1/sessions`: sessions as objects, over HTTP.

Checks callers and bodies. The calls to the services are in `shared/client/calls/session_admin.py`, the format
of session files is in `session_file.py`.
"""

import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import BaseModel

from services.gateway.admission.body_reader import BodyLimit, discard_body
from services.gateway.admission.large_bodies import is_large
from services.gateway.answering.context import GatewayContext
from services.gateway.bodies.body_parser import check_content_type, parse_body
from services.gateway.completions.chat_messages import messages_of
from services.gateway.http.openapi_document import body_documented_as
from services.gateway.sessions import session_file
from services.gateway.sessions.file_thread import FileThread
from services.gateway.sessions.session_schema import (
    MovedSession,
    NewSession,
    SessionDetail,
    SessionListing,
    SessionName,
    SessionObject,
    ToGroup,
    moved_session,
    session_detail,
    session_object,
)
from services.gateway.settings import GatewaySettings
from shared.client.calls.session_admin import SessionAdmin
from shared.errors import InvalidRequest, ModelNotFound, RequestTooLarge
from shared.identity import new_session_id, root_hash
from shared.messages import ModelCard, SessionRecord
from shared.messages.base import NAME_PATTERN, NAME_RULE

PREFIX = "/v1/sessions"
MAX_PAGE = 1000
B = TypeVar("B", bound=BaseModel)

# `{session_id}` is still encoded, since an id may hold a slash (see `session_paths.py`)
SessionIdPath = Annotated[str, Path(description="The session's id, URL-encoded, a `/` in it as `%2F`.")]
_FILE = {"application/json": {"schema": {"type": "object", "description": "See docs/sessions.md."}}}


class SessionRoutes:
    """Handlers of the session routes.

    Args:
        context: What all requests share.
        sessions: Calls the services.
        list_models: The models on offer; raises an error of the family if no router answers.
        files: Makes and reads session files.
        root_key: The secret behind new session ids; see `root_key.py`.
    """

    def __init__(
        self,
        context: GatewayContext,
        sessions: SessionAdmin,
        list_models: Callable[[], Awaitable[Sequence[ModelCard]]],
        files: FileThread,
        root_key: bytes,
    ) -> None:
        self._context = context
        self._root_key = root_key
        self._files = files
        self._limit = body_limit(context.settings)
        self._sessions = sessions
        self._list_models = list_models

    def router(self, errors: dict[int | str, dict[str, Any]]) -> APIRouter:
        """The router of all of them; `errors` documents how they fail."""
        router = APIRouter(
            prefix=PREFIX, tags=["sessions"], responses=errors, dependencies=[Depends(self._hold_place)]
        )
        one = "/{session_id}"
        router.get("")(self.list_sessions)
        router.post("", status_code=201, openapi_extra=body_documented_as(NewSession))(self.create_session)
        router.post(
            "/import", status_code=201, openapi_extra={"requestBody": {"required": True, "content": _FILE}}
        )(self.import_session)
        router.get(one)(self.show_session)
        router.delete(one, status_code=204, response_class=Response)(self.delete_session)
        router.post(f"{one}/pin", openapi_extra=body_documented_as(ToGroup))(self.pin_session)
        router.delete(f"{one}/pin")(self.unpin_session)
        router.post(f"{one}/move", openapi_extra=body_documented_as(ToGroup))(self.move_session)
        router.get(f"{one}/export", response_class=Response, responses={200: {"content": _FILE}})(
            self.export_session
        )
        return router

    async def list_sessions(
        self,
        request: Request,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
        cursor: Annotated[str, Query(max_length=1024, description="`next_cursor` of the page before.")] = "",
    ) -> SessionListing:
        """The tenant's sessions, newest first. One with a turn meanwhile may come twice or not at all."""
        page = await self._sessions.page(self._tenant(request), limit=limit, cursor=cursor)
        now_ms = _now_ms()
        data = [session_object(summary, now_ms) for summary in page.sessions]
        return SessionListing(data=data, has_more=bool(page.cursor), next_cursor=page.cursor or None)

    async def create_session(self, request: Request) -> SessionObject:
        """Creates a session, with messages of an earlier conversation and pinned to a group if wanted.

        Sessions need not be created: a chat completion with a new id begins one too.
        """
        tenant = self._tenant(request)
        body = await self._body(request, NewSession)
        model = _chosen(body.model, await self._list_models())
        messages, now_ms = messages_of(body.messages), _now_ms()
        system = next((one.content for one in messages if one.role == "system"), "")
        first = next((one.content for one in messages if one.role == "user"), "")
        record = SessionRecord(
            session_id=body.session_id or new_session_id(root_hash(tenant, system, first, self._root_key)),
            tenant=tenant,
            model=model,
            version=1,
            messages=messages,
            created_ms=now_ms,
            updated_ms=now_ms,
        )
        summary = await self._sessions.create(record, pinned_group=body.pinned_group or "")
        return session_object(summary, now_ms)

    async def show_session(
        self,
        request: Request,
        session_id: SessionIdPath,
        messages: Annotated[bool, Query(description="With the conversation's text.")] = False,
    ) -> SessionDetail:
        """A session, the groups that have its KV in memory now, and where its next turn would go."""
        view = await self._sessions.view(self._tenant(request), _session_id(session_id))
        return session_detail(view, _now_ms(), messages=messages)

    async def delete_session(self, request: Request, session_id: SessionIdPath) -> Response:
        """Deletes a session: its text, its tokens, its pin, and its KV as far as no other session has it."""
        await self._sessions.delete(self._tenant(request), _session_id(session_id))
        return Response(status_code=204)

    async def pin_session(self, request: Request, session_id: SessionIdPath) -> SessionObject:
        """Pins all turns of a session to a group; an error for an unknown group names the others."""
        tenant = self._tenant(request)
        body = await self._body(request, ToGroup)
        return session_object(
            await self._sessions.pin(tenant, _session_id(session_id), body.group), _now_ms()
        )

    async def unpin_session(self, request: Request, session_id: SessionIdPath) -> SessionObject:
        """Lets the router choose again; also succeeds for a session that is not pinned."""
        summary = await self._sessions.unpin(self._tenant(request), _session_id(session_id))
        return session_object(summary, _now_ms())

    async def move_session(self, request: Request, session_id: SessionIdPath) -> MovedSession:
        """Brings a session's KV into a group's memory, so that the next turn goes there.

        Nothing is computed: KV that the store lacks is computed by the next turn.
        """
        tenant, name = self._tenant(request), _session_id(session_id)
        body = await self._body(request, ToGroup)
        return moved_session(name, await self._sessions.move(tenant, name, body.group))

    async def export_session(self, request: Request, session_id: SessionIdPath) -> Response:
        """The session as a file, to be imported here or into another deployment with the same model."""
        record = await self._sessions.record(self._tenant(request), _session_id(session_id))
        cards = {card.name: card for card in await self._list_models()}
        card = cards.get(record.model)
        fingerprint = card.fingerprint if card else ""
        now_ms = _now_ms()
        raw = await self._files.run_in_turn(
            record.tenant, lambda: session_file.dump_session(record, fingerprint, now_ms)
        )
        name = re.sub(r"[^A-Za-z0-9_-]+", "_", record.session_id)[:100] or "_"
        disposition = f'attachment; filename="{name}.session.json"'
        return Response(raw, media_type="application/json", headers={"content-disposition": disposition})

    async def import_session(
        self,
        request: Request,
        session_id: Annotated[SessionName | None, Query(description="Absent: the file's.")] = None,
        replace: Annotated[bool, Query(description="Also over a session that is there.")] = False,
    ) -> SessionObject:
        """Creates a session from an exported file.

        A file that is cut or altered, or whose weights are not served here, changes nothing.
        """
        tenant = self._tenant(request)
        raw, settings = self._read(request), self._context.settings
        values = session_file.max_values(settings.session_max_bytes, settings.constants.max_body_values)
        content = await self._files.run_in_turn(tenant, lambda: session_file.read_session(raw, values))
        card = session_file.served_by(content, await self._list_models())
        now_ms = _now_ms()
        record = session_file.imported_record(content, tenant, session_id or content.session_id, card, now_ms)
        store = self._sessions.replace if replace else self._sessions.create
        return session_object(await store(record), now_ms)

    async def _hold_place(self, request: Request) -> AsyncIterator[None]:
        """Checks the caller, reads the body, and holds a place until the answer is sent."""
        context, state = self._context, request.state
        state.tenant = tenant = self._asker(request)
        state.party = party = context.admission.parties.party_of(tenant, request.scope.get("client"))
        context.admission.places.check_units(party)
        state.raw = await self._read_body(request, party) if request.method == "POST" else b""
        try:
            context.admission.places.take_units(party)
            try:
                yield
            finally:
                context.admission.places.free_units(party)
        finally:
            context.admission.held.free_units(party, len(state.raw))

    def _tenant(self, request: Request) -> str:
        tenant: str = request.state.tenant
        return tenant

    def _asker(self, request: Request) -> str:
        context = self._context
        context.admission.check_accepting()
        tenant = context.admission.keyring.tenant_of(dict(request.headers.raw), request.url.path)
        context.admission.rates.take_units(tenant, time.monotonic())
        return tenant

    async def _body(self, request: Request, kind: type[B]) -> B:
        raw, max_values = self._read(request) or b"{}", self._context.settings.constants.max_body_values
        if not is_large(raw):
            return parse_body(raw, kind, max_values)
        async with self._context.admission.large.turn(request.state.party):
            return parse_body(raw, kind, max_values)

    def _read(self, request: Request) -> bytes:
        raw: bytes = request.state.raw
        return raw

    async def _read_body(self, request: Request, party: str) -> bytes:
        headers = dict(request.headers.raw)
        check_content_type(headers)
        try:
            raw = await self._context.bodies.read_body(request.receive, headers, party, limit=self._limit)
        except RequestTooLarge:
            if b"expect" not in headers:  # that client sends the body only when asked
                with suppress(TimeoutError):
                    await discard_body(request.receive)
            raise
        self._context.metrics.request_bytes.inc(len(raw))
        return raw


def body_limit(settings: GatewaySettings) -> BodyLimit:
    """The limit of bodies with sessions: a larger one would not fit into the store."""
    num_bytes = session_file.BYTES_PER_RECORD_BYTE * settings.session_max_bytes
    if num_bytes >= settings.max_body_bytes:
        return BodyLimit(settings.max_body_bytes)
    return BodyLimit(num_bytes, "four times RYZ_SESSION_MAX_BYTES", "session_size")


def _session_id(raw: str) -> str:
    try:
        session_id = unquote(raw, errors="strict")
    except UnicodeDecodeError:
        session_id = ""
    if not re.match(NAME_PATTERN, session_id):
        raise InvalidRequest(f"the session id in the path needs {NAME_RULE}; URL-encoded", param="session_id")
    return session_id


def _chosen(model: str | None, cards: Sequence[ModelCard]) -> str:
    names = [card.name for card in cards]
    if model is None:
        if len(names) == 1:
            return names[0]
        served = ", ".join(map(repr, names)) or "none at the moment"
        raise InvalidRequest(f"`model` is required: the models served are {served}", param="model")
    if model not in names:
        raise ModelNotFound(f"no group serves the model {model[:128]!r}; see /v1/models", param="model")
    return model


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
