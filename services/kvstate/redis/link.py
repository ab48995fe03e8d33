"""A connection pool to Redis with a circuit breaker. It sends pipelines and scripts, and translates errors.

Sessions and KV blocks have a link each, so that neither waits for the other's connections, and slow calls
about blocks do not close the circuit of sessions. Only the time that Redis takes counts for the circuit:
a call that waits in this service for a free connection says nothing about the store.
"""

import asyncio
import re
import time
from collections.abc import Sequence
from functools import cache
from hashlib import sha1
from types import TracebackType
from typing import Any, Self, cast

import hiredis
import redis.asyncio as aioredis
import structlog
from redis import exceptions
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from services.kvstate.redis.store_errors import StoreAway, StoreFull, StoreUnwritable
from shared.errors import Unavailable
from shared.flow.circuit import Circuit
from shared.telemetry.histograms import TokenHistogram
from shared.telemetry.spans.call_trace import part_of_call

EXCHANGE_BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
ScriptCall = tuple[Sequence[str | bytes], Sequence[Any]]  # KEYS and ARGV
_NO_DISK = re.compile(r"MISCONF ([^,]*?)(?: script: .*)?$", re.DOTALL)
_CLOSE_S = 5.0  # for closing a connection; all else has the limit of the link
log = structlog.get_logger(__name__)
_NO_MEMORY = "command not allowed when used memory"  # Redis 6 wraps the error of a script into another one

_PARTS = 4  # of the limit; however long the loop is blocked, at most one of them passes meanwhile


class AnswerTime:
    """Raises `TimeoutError` in `async with AnswerTime(limit_s)` when the server takes longer; for one use.

    Time for which this process is busy does not count, as it would in a plain timer: while other calls
    compute, answers lie unread in their sockets, and a fast server would seem to be away.

    The limit is made of intervals. Each begins when the loop handles the end of the one before, so before the
    last one ends, the loop has read what the server sent during the others.
    """

    __slots__ = ("_left", "_limit", "_loop", "_part_s", "_timer")

    def __init__(self, limit_s: float) -> None:
        self._part_s = limit_s / _PARTS
        self._left = _PARTS
        self._loop = asyncio.get_running_loop()
        self._limit = asyncio.timeout(None)

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        self._timer = self._loop.call_later(self._part_s, self._part_passed)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        await self._limit.__aexit__(kind, error, trace)

    def _part_passed(self) -> None:
        self._left -= 1
        if self._left:
            self._timer = self._loop.call_later(self._part_s, self._part_passed)
        else:
            self._limit.reschedule(self._loop.time())  # after the handling of answers that came in this round


class _Packing:
    """Packs commands in C, as redis-py does only in connections without asyncio."""

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
    """Connects when it is first used.

    Args:
        url: The address of the store.
        timeout_s: How long Redis may take for one exchange, including the making of a connection. The wait
            for a free connection comes before that.
        max_connections: Size of the pool.
        name: Names the store in messages.
        reason: The `reason` in the data of errors.
        circuit: While it is open, only probes are sent. None: everything is sent.

    Attributes:
        exchanges: Seconds that Redis took to answer, as this process saw it.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float,
        max_connections: int,
        name: str,
        reason: str,
        circuit: Circuit | None = None,
    ) -> None:
        self.exchanges = TokenHistogram(EXCHANGE_BUCKETS)
        self._name = name
        self._reason = reason
        self._circuit = circuit
        self._timeout_s = timeout_s
        self._free = asyncio.Semaphore(max_connections)  # the pool would raise where this waits
        self._closed = asyncio.Event()
        self._redis = aioredis.Redis.from_url(
            url,
            socket_timeout=None,  # it would count time in which this process was busy: see `AnswerTime`
            socket_connect_timeout=max(_CLOSE_S, timeout_s),
            max_connections=max_connections,
            retry=Retry(NoBackoff(), 0),  # the caller decides whether to try again
        )
        pool = self._redis.connection_pool
        pool.connection_class = _packing(pool.connection_class)

    @property
    def is_away(self) -> bool:
        """True while the circuit is open."""
        return self._circuit is not None and not self._circuit.is_closed

    async def close(self) -> None:
        """Closes all connections; calls under way may fail, later ones do. May be called twice."""
        self._closed.set()
        await self._redis.aclose()

    async def run_script(self, script: str, calls: Sequence[ScriptCall], *, probe: bool = False) -> list[Any]:
        """Runs a script with each of these keys and values in one round trip; raises like `pipeline`.

        A script must bear being run twice with the same arguments.
        """
        digest = _digest(script)
        commands = [("EVALSHA", digest, len(names), *names, *values) for names, values in calls]
        try:
            return await self.pipeline(commands, probe=probe)
        except exceptions.NoScriptError:  # Redis was restarted
            await self.pipeline([("SCRIPT LOAD", script)], probe=probe)
            return await self.pipeline(commands, probe=probe)

    async def pipeline(self, commands: Sequence[tuple[Any, ...]], *, probe: bool = False) -> list[Any]:
        """Sends all commands, then reads all answers; once more where a connection has died.

        Args:
            commands: The commands with their arguments.
            probe: Send them also while the circuit is open.

        Returns:
            The answer to each command.

        Raises:
            StoreAway: There is no connection, or no answer in time.
            StoreFull: Redis has reached its `maxmemory`.
            StoreUnwritable: Redis cannot write to its disk.
            Unavailable: The circuit is open, or Redis refuses a command for another reason.
        """
        circuit = self._circuit
        if circuit is None:
            return await self._exchange(commands)
        if not circuit.is_closed and not probe:
            raise Unavailable(
                f"the {self._name} is away; retry later",
                reason=self._reason,
                retry_after_s=round(circuit.retry_after_s(time.monotonic()), 3),
            )
        try:
            answers = await self._exchange(commands)
        except StoreAway as error:
            was_closed = circuit.is_closed
            if circuit.count_failure(time.monotonic(), certain=error.refused) and was_closed:
                log.warning("store is away", store=self._name, error=error.message,
                            cause=str(error.__cause__ or ""))  # fmt: skip
            raise
        if circuit.count_success():
            log.info("store is back", store=self._name)
        return answers

    async def _exchange(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        try:
            async with self._free:
                try:
                    return await self._send(commands)
                except exceptions.ConnectionError:
                    # the pool does not notice a restart of the server: without this each of its connections
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
        if self._closed.is_set():
            raise exceptions.ConnectionError("closed")
        try:
            with part_of_call(f"Redis, {self._name}"):
                async with AnswerTime(self._timeout_s), self._redis.pipeline(transaction=False) as pipe:
                    for command in commands:
                        pipe.execute_command(*command)
                    began = time.monotonic()
                    answers: list[Any] = await pipe.execute()
                    self.exchanges.observe(time.monotonic() - began)
                    return answers
        finally:
            if self._closed.is_set():  # `close` did not see a connection that was being made
                await self._redis.aclose()
