"""`/v1/sessions`: sessions as objects, over HTTP. What they do is in `sessions/tenants.py`."""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import BaseModel

from services.gateway.admission.bodies.large import is_large
from services.gateway.admission.bodies.reader import BodyLimit, discard_body
from services.gateway.answering.context import GatewayContext
from services.gateway.formats.fields.body_format import check_content_type, parse_body
from services.gateway.resources.sessions import exported_file
from services.gateway.resources.sessions.schema import (
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
from services.gateway.resources.sessions.tenants import (
    PREFIX,
    SessionsCaller,
    TenantSessions,
    check_session_id,
    now_in_ms,
)
from services.gateway.settings import GatewaySettings
from services.gateway.transports.http.openapi_document import body_documented_as
from shared.errors import RequestTooLarge

MAX_PAGE = 1000
B = TypeVar("B", bound=BaseModel)

# `{session_id}` is still encoded, since an id may hold a slash (see `session_paths.py`)
SessionIdPath = Annotated[str, Path(description="The session's id, URL-encoded, a `/` in it as `%2F`.")]
_FILE = {"application/json": {"schema": {"type": "object", "description": "See docs/sessions.md."}}}


class SessionRoutes:
    """Handlers of the session routes.

    Args:
        context: What all requests share.
        sessions: The sessions of all tenants.
    """

    def __init__(self, context: GatewayContext, sessions: TenantSessions) -> None:
        self._context = context
        self._limit = body_limit(context.settings)
        self._sessions = sessions
        self._admin = sessions.admin

    def router(self, errors: dict[int | str, dict[str, Any]]) -> APIRouter:
        """The router of all of them; `errors` documents how they fail."""
        router = APIRouter(
            prefix=PREFIX, tags=["sessions"], responses=errors, dependencies=[Depends(self._hold_slot)]
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
        spare: Annotated[bool, Query(description="With those of single calls that named none.")] = True,
    ) -> SessionListing:
        """The tenant's sessions, newest first. One with a turn meanwhile may come twice or not at all."""
        page = await self._admin.page(self._tenant(request), limit=limit, cursor=cursor, spare=spare)
        now_ms = now_in_ms()
        data = [session_object(summary, now_ms) for summary in page.sessions]
        return SessionListing(data=data, has_more=bool(page.cursor), next_cursor=page.cursor or None)

    async def create_session(self, request: Request) -> SessionObject:
        """Creates a session, with messages of an earlier conversation and pinned to a group if wanted.

        Sessions need not be created: a chat completion with a new id begins one too.
        """
        return await self._sessions.create(_asker(request), await self._body(request, NewSession))

    async def show_session(
        self,
        request: Request,
        session_id: SessionIdPath,
        messages: Annotated[bool, Query(description="With the conversation's text.")] = False,
    ) -> SessionDetail:
        """A session, the groups that have its KV in memory now, and where its next turn would go."""
        view = await self._admin.view(self._tenant(request), _session_id(session_id))
        return session_detail(view, now_in_ms(), messages=messages)

    async def delete_session(self, request: Request, session_id: SessionIdPath) -> Response:
        """Deletes a session: its text, its tokens, its pin, and its KV as far as no other session has it."""
        await self._admin.delete(self._tenant(request), _session_id(session_id))
        return Response(status_code=204)

    async def pin_session(self, request: Request, session_id: SessionIdPath) -> SessionObject:
        """Pins all turns of a session to a group; an error for an unknown group names the others."""
        tenant = self._tenant(request)
        body = await self._body(request, ToGroup)
        return session_object(await self._admin.pin(tenant, _session_id(session_id), body.group), now_in_ms())

    async def unpin_session(self, request: Request, session_id: SessionIdPath) -> SessionObject:
        """Lets the router choose again; also succeeds for a session that is not pinned."""
        summary = await self._admin.unpin(self._tenant(request), _session_id(session_id))
        return session_object(summary, now_in_ms())

    async def move_session(self, request: Request, session_id: SessionIdPath) -> MovedSession:
        """Brings a session's KV into a group's memory, so that the next turn goes there.

        Nothing is computed: KV that the store lacks is computed by the next turn.
        """
        tenant, name = self._tenant(request), _session_id(session_id)
        body = await self._body(request, ToGroup)
        return moved_session(name, await self._admin.move(tenant, name, body.group))

    async def export_session(self, request: Request, session_id: SessionIdPath) -> Response:
        """The session as a file, to be imported here or into another deployment with the same model."""
        name, raw = await self._sessions.export(self._tenant(request), _session_id(session_id))
        disposition = f'attachment; filename="{name}"'
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
        raw = self._read(request)
        return await self._sessions.import_file(_asker(request), raw, session_id, replace=replace)

    async def _hold_slot(self, request: Request, response: Response) -> AsyncIterator[None]:
        """Checks the caller, reads the body, and holds a place until the answer is sent."""
        context, state = self._context, request.state
        asker = self._sessions.admit(dict(request.headers.raw), request.scope.get("client"), request.method)
        state.asker, state.party = asker, asker.party
        party = asker.party
        for name, value in context.admission.limits.headers_of(asker.tenant, ""):
            response.headers[name.decode()] = value.decode()
        state.raw = await self._read_body(request, party) if request.method == "POST" else b""
        try:
            context.admission.slots.take_units(party)
            try:
                yield
            finally:
                context.admission.slots.free_units(party)
        finally:
            context.admission.held.free_units(party, len(state.raw))

    def _tenant(self, request: Request) -> str:
        return _asker(request).tenant

    async def _body(self, request: Request, kind: type[B]) -> B:
        raw, max_values = self._read(request) or b"{}", self._context.settings.constants.max_body_values
        if not is_large(raw):
            return parse_body(raw, kind, max_values)
        async with self._context.admission.large.body_slot(request.state.party):
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
    num_bytes = exported_file.BYTES_PER_RECORD_BYTE * settings.session_max_bytes
    if num_bytes >= settings.max_body_bytes:
        return BodyLimit(settings.max_body_bytes)
    return BodyLimit(num_bytes, "four times RYZ_SESSION_MAX_BYTES", "session_size")


def _asker(request: Request) -> SessionsCaller:
    asker: SessionsCaller = request.state.asker
    return asker


def _session_id(raw: str) -> str:
    try:
        session_id = unquote(raw, errors="strict")
    except UnicodeDecodeError:
        session_id = ""
    check_session_id(session_id)
    return session_id
