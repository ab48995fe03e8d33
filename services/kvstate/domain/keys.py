"""Every Redis key, spelled once. KV blocks and their index will get their names here as well."""

from urllib.parse import quote

PREFIX = "ryz"
TENANTS = f"{PREFIX}:tenants"  # the set of tenants that have sessions, for counts


def session(tenant: str, session_id: str) -> str:
    """The hash with a session's version (`v`), record (`r`) and summary (`s`)."""
    return f"{PREFIX}:session:{tenant}:{session_id}"


def session_index(tenant: str) -> str:
    """The sorted set of a tenant's session ids, scored by the time of the last commit in milliseconds."""
    return f"{PREFIX}:sessions:{tenant}"


def cursor(score_ms: int, session_id: str) -> str:
    """Where a page ended: the last entry that was on it."""
    return f"{score_ms}:{quote(session_id, safe='')}"
