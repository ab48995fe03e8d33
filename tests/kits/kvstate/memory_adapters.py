"""The register of adapters in memory: the plain form of the contract."""

from collections.abc import Callable

from services.kvstate.adapters.store import RegisterChange, RegisterEntry, RegisterLimits, RegisterPage


class MemoryAdapterStore:
    """Implements `AdapterStore`; `clock` returns seconds since 1970."""

    def __init__(self, clock: Callable[[], float], limits: RegisterLimits | None = None) -> None:
        self._clock = clock
        self._limits = limits or RegisterLimits()
        self._version = 0
        self._entries: dict[str, RegisterEntry] = {}

    async def put(self, entry: RegisterEntry, *, replace: bool) -> RegisterChange:
        """See `AdapterStore.put`."""
        member, version = f"{entry.base} {entry.name}", self._version
        found = self._entries.get(member)
        if found is not None:
            if found.identity == entry.identity:
                return RegisterChange("same", found.record, version, version)
            if found.fingerprint != entry.fingerprint and not replace:
                return RegisterChange("conflict", found.record, version, version)
        else:
            if sum(other.base == entry.base for other in self._entries.values()) >= self._limits.per_base:
                return RegisterChange("base_full", None, version, version)
            if len(self._entries) >= self._limits.total:
                return RegisterChange("full", None, version, version)
        self._entries[member] = entry
        return RegisterChange("put", entry.record, version, self._next())

    async def delete(self, base: str, name: str) -> RegisterChange:
        """See `AdapterStore.delete`."""
        found, version = self._entries.pop(f"{base} {name}", None), self._version
        if found is None:
            return RegisterChange("same", None, version, version)
        return RegisterChange("put", found.record, version, self._next())

    async def page(self, cursor: str, room: int, known: int = 0) -> RegisterPage:
        """See `AdapterStore.page`."""
        if not cursor and known == self._version:
            return RegisterPage([], self._version, "")
        records, last = list[bytes](), ""
        members = sorted((one for one in self._entries if one > cursor), key=str.encode)
        for member in members:
            record = self._entries[member].record
            room -= len(record)
            if room < 0 and records:
                return RegisterPage(records, self._version, last)
            records.append(record)
            last = member
        return RegisterPage(records, self._version, "")

    async def close(self) -> None:
        """See `AdapterStore.close`."""

    def _next(self) -> int:
        self._version = max(self._version + 1, int(self._clock() * 1000))
        return self._version
