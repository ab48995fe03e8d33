"""`/v1/sessions` as `ryz sessions` uses it."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import quote

import httpx

from cli.http_api import ApiError, HttpApi
from services.gateway.resources.sessions.schema import (
    MovedSession,
    SessionDetail,
    SessionListing,
    SessionObject,
)

_PAGE = 1000
_FILE_NAME = re.compile(r'filename="([\w.-]+)"')


class SessionsApi(HttpApi):
    """Sessions of one gateway. Methods raise `CommandError` like `HttpApi`."""

    exit_codes: ClassVar[Mapping[int, int]] = {404: 3, 409: 4}

    def _check(self, answer: httpx.Response) -> None:
        try:
            super()._check(answer)
        except ApiError as error:  # it names the parameter of the route
            text = str(error).replace("`replace`", "`--replace`")
            raise ApiError(text, error.exit_code, error.code) from None

    def newest(self, limit: int | None, *, spare: bool = True) -> tuple[list[dict[str, Any]], bool]:
        """Return up to `limit` sessions (None: all), newest first, and whether there are more.

        Args:
            limit: Over all pages.
            spare: With those of single calls.
        """
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            wanted = _PAGE if limit is None else min(_PAGE, limit - len(found))
            params = {"limit": wanted, "cursor": cursor, "spare": spare}
            page = self.ask_for(SessionListing, "GET", "/v1/sessions", params=params)
            found += page["data"]
            cursor = page["next_cursor"] or ""
            if not cursor or len(found) == limit:
                return found, bool(cursor)

    def create(self, wanted: Mapping[str, Any]) -> Any:
        """Begin a session; `wanted` is the body."""
        return self.ask_for(SessionObject, "POST", "/v1/sessions", json=dict(wanted))

    def show(self, session_id: str, *, messages: bool) -> Any:
        """Return all that is known of a session."""
        return self.ask_for(SessionDetail, "GET", _at(session_id), params={"messages": messages})

    def pin(self, session_id: str, group: str) -> Any:
        """Bind a session to a group."""
        return self.ask_for(SessionObject, "POST", _at(session_id, "/pin"), json={"group": group})

    def unpin(self, session_id: str) -> Any:
        """Let the router choose."""
        return self.ask_for(SessionObject, "DELETE", _at(session_id, "/pin"))

    def move(self, session_id: str, group: str) -> Any:
        """Bring a session's KV into the group's memory."""
        return self.ask_for(MovedSession, "POST", _at(session_id, "/move"), json={"group": group})

    def export(self, session_id: str) -> tuple[str, bytes]:
        """Return a name for a session's file, and the file."""
        answer = self.ask("GET", _at(session_id, "/export"))
        named = _FILE_NAME.search(answer.headers.get("Content-Disposition", ""))
        return (named[1] if named else "exported.session.json"), answer.content

    def import_file(self, content: bytes, session_id: str, *, replace: bool) -> Any:
        """Begin a session from an exported file; an empty id keeps the file's."""
        params: dict[str, Any] = {"replace": replace}
        if session_id:
            params["session_id"] = session_id
        headers = {"Content-Type": "application/json"}
        more = {"params": params, "content": content, "headers": headers}
        return self.ask_for(SessionObject, "POST", "/v1/sessions/import", **more)

    def delete(self, session_id: str) -> None:
        """Delete a session."""
        self.ask("DELETE", _at(session_id))


def _at(session_id: str, more: str = "") -> str:
    # dots too, since `.` and `..` are path segments
    return f"/v1/sessions/{quote(session_id, safe='').replace('.', '%2E')}{more}"
