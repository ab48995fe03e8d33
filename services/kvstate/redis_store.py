"""The session store on Redis: a hash per session, a sorted set per tenant, writes by script in one pipeline.

It connects and speaks; the merge rule and the names are the domain's, time limits and the circuit are
those of `guarded_store.py`.
"""

import asyncio
import time
from collections.abc import Sequence
from hashlib import sha1
from typing import Any

import redis.asyncio as aioredis
from msgspec.structs import replace
from redis import exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from services.kvstate import scripts
from services.kvstate.domain import keys
from services.kvstate.domain.records import Cursor, Entry
from services.kvstate.store import Page, StoreAway
from shared.codec import decode
from shared.errors import Internal, InvalidRequest, Unavailable
from shared.messages import SessionSummary


class RedisStore:
    """Implements `SessionStore`. Connects when it is first used."""

    def __init__(self, url: str, *, ttl_s: float, timeout_s: float, max_connections: int) -> None:
        self._ttl_ms = int(ttl_s * 1000)
        self._free = asyncio.Semaphore(max_connections)  # the pool would raise where this waits
        self._redis = aioredis.Redis.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            max_connections=max_connections,
            retry=Retry(NoBackoff(), 0),  # whoever asked decides whether to ask again
        )

    async def get(self, tenant: str, session_id: str) -> bytes | None:
        """See `SessionStore.get`."""
        (record,) = await self._pipeline([("HGET", keys.session(tenant, session_id), "r")])
        return bytes(record) if record is not None else None

    async def put(self, entries: Sequence[Entry]) -> list[bool]:
        """See `SessionStore.put`."""
        now_ms = time.time_ns() // 1_000_000
        calls = []
        for first in range(0, len(entries), scripts.MAX_ITEMS):
            chunk = entries[first : first + scripts.MAX_ITEMS]
            names: list[str] = []
            # scores lie at most one ttl before their commit (`make_entry`), so what is two old has expired
            values: list[Any] = [self._ttl_ms, now_ms - 2 * self._ttl_ms]
            for entry in chunk:
                names += (keys.session(entry.tenant, entry.session_id), keys.session_index(entry.tenant))
                values += (entry.version, entry.record, entry.summary, entry.score_ms, entry.session_id)
            calls.append((names, values))
        tenants = sorted({entry.tenant for entry in entries})
        answers = await self._run(scripts.PUT, calls, ("SADD", keys.TENANTS, *tenants)) if calls else []
        return [stored == 1 for answer in answers for stored in answer]

    async def page(self, tenant: str, limit: int, after: Cursor | None) -> Page:
        """See `SessionStore.page`."""
        index, top = keys.session_index(tenant), after.score_ms if after else "+inf"
        found: list[tuple[Cursor, SessionSummary]] = []
        offset, step = 0, limit + 1
        while len(found) <= limit:
            args = ("ZREVRANGEBYSCORE", index, top, "-inf", "WITHSCORES", "LIMIT", offset, step)
            (flat,) = await self._pipeline([args])
            places = [Cursor(int(float(score)), name.decode()) for name, score in _pairs(flat)]
            rest = [
                place for place in places if not (after and after.passed(place.score_ms, place.session_id))
            ]
            alive = await self._read(tenant, rest)
            found += alive
            offset += step - (len(rest) - len(alive))  # what expired left the index, and the rest moved up
            if len(places) < step:
                break
        last = found[limit - 1][0] if len(found) > limit else None
        return Page([summary for _, summary in found[:limit]], last)

    async def delete(self, tenant: str, session_id: str) -> bool:
        """See `SessionStore.delete`."""
        deleted, _ = await self._pipeline(
            [
                ("DEL", keys.session(tenant, session_id)),
                ("ZREM", keys.session_index(tenant), session_id),
            ]
        )
        return bool(deleted)

    async def count(self) -> int:
        """See `SessionStore.count`."""
        (tenants,) = await self._pipeline([("SRANDMEMBER", keys.TENANTS, 1000)])
        names = [tenant.decode() for tenant in tenants]
        counts = (
            await self._pipeline([("ZCARD", keys.session_index(name)) for name in names]) if names else []
        )
        gone = [name for name, count in zip(names, counts, strict=True) if not count]
        if gone:
            await self._pipeline([("SREM", keys.TENANTS, *gone)])
        return sum(counts)

    async def close(self) -> None:
        """See `SessionStore.close`."""
        await self._redis.aclose()

    async def _read(self, tenant: str, places: list[Cursor]) -> list[tuple[Cursor, SessionSummary]]:
        """The summaries at these places, without those that expired."""
        index, calls = keys.session_index(tenant), []
        for first in range(0, len(places), scripts.MAX_ITEMS):
            ids = [place.session_id for place in places[first : first + scripts.MAX_ITEMS]]
            calls.append(([index, *(keys.session(tenant, name) for name in ids)], ids))
        answers = await self._run(scripts.READ, calls) if calls else []
        pairs = [pair for answer in answers for pair in _pairs(answer)]
        return [
            (place, replace(_summary(raw, place), ttl_s=max(0, int(left_ms)) // 1000))
            for place, (raw, left_ms) in zip(places, pairs, strict=True)
            if raw
        ]

    async def _run(
        self, script: str, calls: Sequence[tuple[list[str], Sequence[Any]]], after: tuple[Any, ...] = ()
    ) -> list[Any]:
        """Runs a script with each of these keys and values, and a command after them, in one round trip."""
        digest = sha1(script.encode(), usedforsecurity=False).hexdigest()
        commands = [("EVALSHA", digest, len(names), *names, *values) for names, values in calls]
        if after:
            commands.append(after)
        try:
            answers = await self._pipeline(commands)
        except (
            exceptions.NoScriptError
        ):  # Redis started anew since; what it stored already is judged the same
            await self._pipeline([("SCRIPT LOAD", script)])
            answers = await self._pipeline(commands)
        return answers[: len(calls)]

    async def _pipeline(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Sends all commands, then reads all answers.

        Raises:
            StoreAway: there is no connection, or no answer in time.
            Unavailable: Redis refuses a command, such as a write without memory left.
        """
        try:
            async with self._free, self._redis.pipeline(transaction=False) as pipe:
                for command in commands:
                    pipe.execute_command(*command)
                answers: list[Any] = await pipe.execute()
                return answers
        except exceptions.NoScriptError:
            raise
        except exceptions.TimeoutError as error:
            raise StoreAway("the session store did not answer in time; retry later", refused=False) from error
        except (exceptions.ConnectionError, OSError) as error:
            raise StoreAway("the session store cannot be reached; retry later", refused=True) from error
        except exceptions.RedisError as error:
            raise Unavailable(
                "the session store refused a command; its log and ours say why", reason="session_store"
            ) from error


def _pairs(flat: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Redis's flat lists of twos; RESP3 gives scores as pairs already."""
    if flat and isinstance(flat[0], list | tuple):
        return [(first, second) for first, second in flat]
    return list(zip(flat[::2], flat[1::2], strict=True))


def _summary(raw: bytes, place: Cursor) -> SessionSummary:
    try:
        return decode(raw, SessionSummary)
    except InvalidRequest as error:
        raise Internal(f"the stored summary of session {place.session_id!r} cannot be read") from error
