"""The register of adapters on Redis: a hash for each, a sorted set of their names, and a version."""

from typing import Any

from services.kvstate.adapters import scripts
from services.kvstate.adapters.store import RegisterChange, RegisterEntry, RegisterLimits, RegisterPage
from services.kvstate.redis.link import RedisLink

_LIMITS = RegisterLimits()


class RedisAdapterStore:
    """Implements `AdapterStore`."""

    def __init__(self, link: RedisLink, limits: RegisterLimits = _LIMITS) -> None:
        self._link = link
        self._limits = limits

    async def put(self, entry: RegisterEntry, *, replace: bool) -> RegisterChange:
        """See `AdapterStore.put`."""
        values = (*entry, int(replace), self._limits.per_base, self._limits.total)
        (answer,) = await self._link.run_script(scripts.PUT, [((), values)])
        return _change(answer)

    async def delete(self, base: str, name: str) -> RegisterChange:
        """See `AdapterStore.delete`."""
        (answer,) = await self._link.run_script(scripts.DELETE, [((), (base, name))])
        return _change(answer)

    async def page(self, cursor: str, room: int, known: int = 0) -> RegisterPage:
        """See `AdapterStore.page`."""
        (answer,) = await self._link.run_script(scripts.PAGE, [((), (cursor, room, known))])
        version, last, *records = answer
        return RegisterPage([bytes(record) for record in records], version, last.decode())

    async def close(self) -> None:
        """See `AdapterStore.close`."""
        await self._link.close()


def _change(answer: Any) -> RegisterChange:
    verdict, record, before, version = answer
    return RegisterChange(verdict.decode(), None if record is None else bytes(record), before, version)
