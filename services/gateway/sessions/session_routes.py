"""`/v1/sessions`: sessions as objects, over HTTP.

Checks who asks and what was sent; what it means for a session is `shared/client/calls/session_admin.py`'s,
and what a file of one is, `session_file.py`'s.
"""

import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import BaseModel

from services.gateway.bodies.body_parser import check_content_type, parse
from services.gateway.bodies.large_bodies import is_large
from services.gateway.completions.translate import messages_of
from services.gateway.http.limits import BodyLimit, discard_body
from services.gateway.http.route import Context, body_party
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
from shared.errors import InvalidRequest, ModelNotFound, RequestTooLarge, Unavailable
from shared.identity import new_session_id, root_hash
from shared.messages import ModelCard, SessionRecord
from shared.messages.base import NAME_PATTERN, NAME_RULE

PREFIX = "/v1/sessions"
MAX_PAGE = 1000
B = TypeVar("B", bound=BaseModel)

# `{session_id}` is what was sent, still encoded: an id may hold a slash (see `session_paths.py`)
SessionIdPath = Annotated[str, Path(description="The session's id, URL-encoded, a `/` in it as `%2F`.")]
_FILE = {"application/json": {"schema": {"type": "object", "description": "See docs/sessions.md."}}}


class SessionRoutes:
    """Makes the router with all of them.

    list_models: what is served now; raises an error of the family when nobody knows.
    files: where files of sessions are made and read.
    """

    def __init__(
        self,
        context: Context,
        sessions: SessionAdmin,
        list_models: Callable[[], Awaitable[Sequence[ModelCard]]],
        files: FileThread,
    ) -> None:
        self._context = context
        self._files = files
        self._limit = body_limit(context.settings)
        self._sessions = sessions
        self._list_models = list_models

    def router(self, errors: dict[int | str, dict[str, Any]]) -> APIRouter:
        """The routes; `errors` documents how they fail."""
        router = APIRouter(
            prefix=PREFIX, tags=["sessions"], responses=errors, dependencies=[Depends(self._place)]
        )
        one = "/{session_id}"
        router.get("")(self.list_sessions)
        router.post("", status_code=201, openapi_extra=_body_of(NewSession))(self.create_session)
        router.post(
            "/import", status_code=201, openapi_extra={"requestBody": {"required": True, "content": _FILE}}
        )(self.import_session)
        router.get(one)(self.show_session)
        router.delete(one, status_code=204, response_class=Response)(self.delete_session)
        router.post(f"{one}/pin", openapi_extra=_body_of(ToGroup))(self.pin_session)
        router.delete(f"{one}/pin")(self.unpin_session)
        router.post(f"{one}/move", openapi_extra=_body_of(ToGroup))(self.move_session)
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
        """The tenant's sessions, newest first. One that has a turn meanwhile may be seen twice or not."""
        page = await self._sessions.page(self._tenant(request), limit=limit, cursor=cursor)
        now_ms = _now_ms()
        data = [session_object(summary, now_ms) for summary in page.sessions]
        return SessionListing(data=data, has_more=bool(page.cursor), next_cursor=page.cursor or None)

    async def create_session(self, request: Request) -> SessionObject:
        """Begins a session, with what was said before if you like, and pinned if you like.

        It need not be created: a chat completion with a new id begins one too.
        """
        tenant = self._tenant(request)
        body = await self._body(request, NewSession)
        model = _chosen(body.model, await self._list_models())
        messages, now_ms = messages_of(body.messages), _now_ms()
        system = next((one.content for one in messages if one.role == "system"), "")
        first = next((one.content for one in messages if one.role == "user"), "")
        record = SessionRecord(
            session_id=body.session_id
            or new_session_id(root_hash(tenant, system, first, self._context.root_key)),
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
        """Binds all turns of a session to a group; for one that does not exist, names those that do."""
        tenant = self._tenant(request)
        body = await self._body(request, ToGroup)
        return session_object(
            await self._sessions.pin(tenant, _session_id(session_id), body.group), _now_ms()
        )

    async def unpin_session(self, request: Request, session_id: SessionIdPath) -> SessionObject:
        """Lets the router choose again; fine for a session that is not pinned."""
        summary = await self._sessions.unpin(self._tenant(request), _session_id(session_id))
        return session_object(summary, _now_ms())

    async def move_session(self, request: Request, session_id: SessionIdPath) -> MovedSession:
        """Brings a session's KV into a group's memory, so that the next turn goes there.

        Nothing is computed: what the store does not have, the next turn computes.
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
        raw = await self._files.run(record.tenant, lambda: session_file.dump(record, fingerprint, now_ms))
        name = re.sub(r"[^A-Za-z0-9_-]+", "_", record.session_id)[:100] or "_"
        disposition = f'attachment; filename="{name}.session.json"'
        return Response(raw, media_type="application/json", headers={"content-disposition": disposition})

    async def import_session(
        self,
        request: Request,
        session_id: Annotated[SessionName | None, Query(description="Absent: the file's.")] = None,
        replace: Annotated[bool, Query(description="Also over a session that is there.")] = False,
    ) -> SessionObject:
        """Begins a session from an exported file. A file that is cut or altered, or of a model that is not
        served with the same weights, changes nothing.
        """
        tenant = self._tenant(request)
        raw, settings = self._read(request), self._context.settings
        values = session_file.max_values(settings.session_max_bytes, settings.max_body_values)
        content = await self._files.run(tenant, lambda: session_file.read(raw, values))
        card = session_file.served_by(content, await self._list_models())
        now_ms = _now_ms()
        record = session_file.imported(content, tenant, session_id or content.session_id, card, now_ms)
        store = self._sessions.replace if replace else self._sessions.create
        return session_object(await store(record), now_ms)

    async def _place(self, request: Request) -> AsyncIterator[None]:
        """Who asks, if it may ask now; then its body; then a place for it until the answer is sent."""
        context, state = self._context, request.state
        state.tenant = tenant = self._asker(request)
        context.places.check(tenant)
        state.raw = await self._read_body(request, tenant) if request.method == "POST" else b""
        try:
            context.places.take(tenant)
            try:
                yield
            finally:
                context.places.free(tenant)
        finally:
            context.held.free(tenant, len(state.raw))

    def _tenant(self, request: Request) -> str:
        tenant: str = request.state.tenant
        return tenant

    def _asker(self, request: Request) -> str:
        context = self._context
        if not context.accepting():
            raise Unavailable(
                "this gateway takes no requests at the moment: it starts, stops or has no broker",
                reason="not_ready",
                retry_after_s=1.0,
            )
        tenant = context.keyring.tenant(request.headers.get("authorization", "").encode("latin-1"))
        context.rates.take(tenant, time.monotonic())
        return tenant

    async def _body(self, request: Request, kind: type[B]) -> B:
        raw, max_values = self._read(request) or b"{}", self._context.settings.max_body_values
        if not is_large(raw):
            return parse(raw, kind, max_values)
        async with self._context.large.turn(self._tenant(request)):
            return parse(raw, kind, max_values)

    def _read(self, request: Request) -> bytes:
        raw: bytes = request.state.raw
        return raw

    async def _read_body(self, request: Request, tenant: str) -> bytes:
        headers = dict(request.headers.raw)
        check_content_type(headers)
        party = body_party(self._context, tenant, request.scope)
        try:
            raw = await self._context.bodies.read(request.receive, headers, tenant, party, limit=self._limit)
        except RequestTooLarge:
            if b"expect" not in headers:  # that client waits to be asked for the body
                with suppress(TimeoutError):
                    await discard_body(request.receive)
            raise
        self._context.metrics.request_bytes.inc(len(raw))
        return raw


def body_limit(settings: GatewaySettings) -> BodyLimit:
    """Of bodies with sessions: there is no use in reading what no store would take."""
    num_bytes = session_file.BYTES_PER_RECORD_BYTE * settings.session_max_bytes
    if num_bytes >= settings.max_body_bytes:
        return BodyLimit(settings.max_body_bytes)
    return BodyLimit(num_bytes, "four times RYZ_SESSION_MAX_BYTES", "session_size")


def _body_of(kind: type[BaseModel]) -> dict[str, Any]:
    """Documents a body that is read by hand, within our limits and with our errors."""
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}}
    return {"requestBody": {"required": True, "content": content}}


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
