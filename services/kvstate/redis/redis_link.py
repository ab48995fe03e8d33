"""A connection pool to Redis that sends pipelines and scripts, and tells what went wrong in our own words.

Sessions and KV blocks have a link each, so that neither waits for the other's connections.
"""

import asyncio
import re
from collections.abc import Sequence
from functools import cache
from hashlib import sha1
from typing import Any, cast

import hiredis
import redis.asyncio as aioredis
from redis import exceptions
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from services.kvstate.redis.answer_time import AnswerTime
from services.kvstate.sessions.session_store import StoreAway, StoreFull, StoreUnwritable
from shared.errors import Unavailable

ScriptCall = tuple[Sequence[str | bytes], Sequence[Any]]  # KEYS and ARGV
_NO_DISK = re.compile(r"MISCONF ([^,]*?)(?: script: .*)?$", re.DOTALL)
_CLOSE_S = 5.0  # for the end of a connection; all else is held to the link's limit
_NO_MEMORY = "command not allowed when used memory"  # Redis 6 wraps the error of a script into another one


class _Packing:
    """Makes commands bytes in C, which redis-py does in its connections without asyncio only."""

    def pack_command(self, *args: Any) -> list[bytes]:
        name = args[0]
        if isinstance(name, str) and " " in name:  # as "SCRIPT LOAD"
            args = (*name.split(" "), *args[1:])
        return [hiredis.pack_command(args)]


def _packing(kind: type[AbstractConnection]) -> type[AbstractConnection]:
    return cast(type[AbstractConnection], type(f"Packing{kind.__name__}", (_Packing, kind), {}))


@cache
def _digest(script: str) -> str:
    return sha1(script.encode(), usedforsecurity=False).hexdigest()


class RedisLink:
    """Connects when it is first used. `name` is what messages call the store; `reason` is their data's.

    timeout_s: how long Redis may take for one exchange, the making of a connection included. The wait for a
    free connection comes before that.
    """

    def __init__(self, url: str, *, timeout_s: float, max_connections: int, name: str, reason: str) -> None:
        self._name = name
        self._reason = reason
        self._timeout_s = timeout_s
        self._free = asyncio.Semaphore(max_connections)  # the pool would raise where this waits
        self._redis = aioredis.Redis.from_url(
            url,
            socket_timeout=None,  # it would count time in which this process was busy: see `AnswerTime`
            socket_connect_timeout=max(_CLOSE_S, timeout_s),
            max_connections=max_connections,
            retry=Retry(NoBackoff(), 0),  # whoever asked decides whether to ask again
        )
        pool = self._redis.connection_pool
        pool.connection_class = _packing(pool.connection_class)

    async def close(self) -> None:
        """Lets go of all connections. May be called twice."""
        await self._redis.aclose()

    async def run(self, script: str, calls: Sequence[ScriptCall], after: tuple[Any, ...] = ()) -> list[Any]:
        """Runs a script with each of these keys and values, and a command after them, in one round trip.

        A script must bear being run twice with the same arguments.
        """
        digest = _digest(script)
        commands = [("EVALSHA", digest, len(names), *names, *values) for names, values in calls]
        if after:
            commands.append(after)
        try:
            answers = await self.pipeline(commands)
        except exceptions.NoScriptError:  # Redis started anew since
            await self.pipeline([("SCRIPT LOAD", script)])
            answers = await self.pipeline(commands)
        return answers[: len(calls)]

    async def pipeline(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Sends all commands, then reads all answers; once more where a connection has died.

        Raises:
            StoreAway: there is no connection, or no answer in time.
            StoreFull: Redis has reached its `maxmemory`.
            StoreUnwritable: Redis cannot write to its disk.
            Unavailable: Redis refuses a command for another reason.
        """
        try:
            async with self._free:
                try:
                    return await self._send(commands)
                except exceptions.ConnectionError:
                    # the pool does not see that a server restarted: without this each of its connections
                    # would fail a call, and open the circuit again
                    await self._redis.connection_pool.disconnect(inuse_connections=False)
                    return await self._send(commands)
        except exceptions.NoScriptError:
            raise
        except (exceptions.TimeoutError, TimeoutError) as error:
            raise StoreAway(
                f"the {self._name} did not answer in time; retry later", reason=self._reason, refused=False
            ) from error
        except (exceptions.ConnectionError, OSError) as error:
            raise StoreAway(
                f"the {self._name} cannot be reached; retry later", reason=self._reason, refused=True
            ) from error
        except exceptions.RedisError as error:
            if _NO_MEMORY in str(error):
                raise StoreFull(
                    f"the {self._name} is full; give Redis more maxmemory, or let sessions live shorter",
                    reason=self._reason,
                ) from error
            if unwritable := _NO_DISK.search(str(error)):
                raise StoreUnwritable(self._name, unwritable[1], reason=self._reason) from error
            raise Unavailable(
                f"the {self._name} refused a command; its log and ours say why", reason=self._reason
            ) from error

    async def _send(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        async with AnswerTime(self._timeout_s), self._redis.pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            answers: list[Any] = await pipe.execute()
            return answers
