"""What a session store has, read from its Redis as the KV state service keeps it.

The release that wrote a summary need not be this one, so it is read as plain data: a session is found and
brought back also if this release's `SessionSummary` does not fit.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import redis

from services.kvstate.domain import keys
from shared.codec import unpack_plain

_STEP = 1000


class EntryKey(NamedTuple):
    """A tenant, and the id of a session or response of it."""

    tenant: str
    name: str


class SessionOutline(NamedTuple):
    """What is shown of a session; 0 where its summary has no such number.

    Attributes:
        num_tokens: Of its last turn, prompt and answer.
        updated_ms: When its last turn ended, in milliseconds since 1970.
    """

    turns: int = 0
    num_tokens: int = 0
    updated_ms: int = 0


@dataclass(frozen=True, slots=True)
class StoredSessions:
    """What is stored, by tenant and id.

    Attributes:
        sessions: Outlines of sessions.
        pins: Pinned sessions.
        responses: Records of the Responses API.
    """

    sessions: dict[EntryKey, SessionOutline] = field(default_factory=dict)
    pins: frozenset[EntryKey] = frozenset()
    responses: frozenset[EntryKey] = frozenset()

    def without(self, other: "StoredSessions") -> "StoredSessions":
        """Returns what is here and not there."""
        return StoredSessions(
            {key: outline for key, outline in self.sessions.items() if key not in other.sessions},
            self.pins - other.pins,
            self.responses - other.responses,
        )

    @property
    def is_empty(self) -> bool:
        """True if nothing is stored."""
        return not (self.sessions or self.pins or self.responses)

    def describe(self) -> str:
        """Returns the counts in words."""
        tenants = {key.tenant for key in (*self.sessions, *self.responses)}
        counts = [
            _count(len(self.sessions), "session"),
            _count(len(self.pins), "pin"),
            _count(len(self.responses), "response"),
        ]
        return f"{counts[0]}, {counts[1]} and {counts[2]} of {_count(len(tenants), 'tenant')}"


def read_stored(client: redis.Redis) -> StoredSessions:
    """Reads all of it."""
    sessions: dict[EntryKey, SessionOutline] = {}
    for names in _scan(client, keys.SESSION_PREFIX):
        pipe = client.pipeline(transaction=False)
        for name in names:
            pipe.hget(name, "s")
        for name, raw in zip(names, pipe.execute(), strict=True):
            if raw is not None:
                sessions[_key(name, keys.SESSION_PREFIX)] = _outline(raw)
    responses = frozenset(
        _key(name, keys.RESPONSE_PREFIX) for names in _scan(client, keys.RESPONSE_PREFIX) for name in names
    )
    members = cast(list[bytes], client.zrange(keys.PINS, 0, -1))
    pins = frozenset(EntryKey(*keys.split_member(member.decode())) for member in members)
    return StoredSessions(sessions, pins & sessions.keys(), responses)


def _outline(summary: bytes) -> SessionOutline:
    try:
        fields = unpack_plain(summary)
    except ValueError:  # the session's record may be whole all the same
        fields = {}
    found = (fields.get(name) if isinstance(fields, dict) else 0 for name in SessionOutline._fields)
    return SessionOutline(*(number if isinstance(number, int) else 0 for number in found))


def recount(client: redis.Redis) -> None:
    """Sets the sums of bytes of tenants to what their sessions and responses take.

    Scripts change a sum by differences, which are wrong where a part of the log was not read meanwhile.
    """
    total = 0
    for prefix in (keys.SIZES_PREFIX, keys.RESPONSE_SIZES_PREFIX):
        for names in _scan(client, prefix):
            for name in names:
                if name == prefix.encode():
                    continue
                sizes = cast(dict[bytes, bytes], client.hgetall(name))
                size = sum(int(value) for member, value in sizes.items() if member)
                client.hset(name, "", str(size))
                total += size if prefix == keys.SIZES_PREFIX else 0
    client.hset(keys.SIZES_PREFIX, "", str(total))


def _scan(client: redis.Redis, prefix: str) -> Iterator[list[bytes]]:
    cursor = 0
    while True:
        cursor, found = cast(tuple[int, list[Any]], client.scan(cursor, match=f"{prefix}*", count=_STEP))
        yield found
        if cursor == 0:
            return


def _key(name: bytes, prefix: str) -> EntryKey:
    tenant, _, rest = name.decode()[len(prefix) :].partition(":")
    return EntryKey(tenant, rest)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
