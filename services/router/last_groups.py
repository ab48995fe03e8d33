"""Asks the KV state service where a session was last served, for the policy `state_server`."""

import structlog

from shared import subjects
from shared.bus import Bus
from shared.bus.endpoint import call
from shared.errors import RyzError, SessionNotFound
from shared.messages import SessionFound, SessionGet

log = structlog.get_logger(__name__)


class LastGroups:
    """Asks where a session was last served. No answer counts as "unknown", so trouble fails no request."""

    def __init__(self, bus: Bus, timeout_s: float) -> None:
        self._bus = bus
        self._timeout_s = timeout_s

    async def find(self, tenant: str, session_id: str) -> str:
        """The group of the session's last turn; an empty text if there was none, or it is not known."""
        query, timeout_s = SessionGet(tenant=tenant, session_id=session_id), self._timeout_s
        try:
            found = await call(self._bus, subjects.SESSION_GET, query, SessionFound, timeout_s=timeout_s)
            return found.record.last_group
        except SessionNotFound:
            return ""
        except RyzError as error:
            log.warning("session not looked up", session_id=session_id, error=error.message)
            return ""
