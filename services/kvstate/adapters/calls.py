"""The calls of routers and gateways about the register of adapters, and the news of its changes."""

import structlog

from services.kvstate.adapters.store import AdapterStore, RegisterChange, RegisterEntry
from services.kvstate.call_server import CallKind
from shared import subjects
from shared.bus import Bus
from shared.codec import decode, encode
from shared.errors import Conflict, RateLimited, RyzError
from shared.messages import (
    Adapter,
    AdapterChanged,
    AdapterDelete,
    AdapterList,
    AdapterPage,
    AdapterPut,
    AdapterStored,
)
from shared.messages.adapters import MAX_ADAPTERS, MAX_PER_BASE

PAGE_BYTES = 256 * 1024
_FULL = {
    "base_full": f"model {{base!r}} has {MAX_PER_BASE} adapters, as many as it may have: unload one",
    "full": f"there are {MAX_ADAPTERS} adapters, as many as there may be: unload one",
}
log = structlog.get_logger(__name__)


class AdapterCalls:
    """Answers the calls, and publishes changes to routers and gateways."""

    def __init__(self, bus: Bus, store: AdapterStore) -> None:
        self._bus = bus
        self._store = store

    def calls(self) -> tuple[CallKind, ...]:
        """Returns the calls with their names, subjects and types."""
        return (
            CallKind("put_adapter", subjects.ADAPTER_PUT, AdapterPut, self._put),
            CallKind("delete_adapter", subjects.ADAPTER_DELETE, AdapterDelete, self._delete),
            CallKind("adapters", subjects.ADAPTERS, AdapterList, self._list),
        )

    async def _put(self, call: AdapterPut) -> AdapterStored:
        adapter = call.adapter
        identity = f"{adapter.fingerprint} {adapter.tenant} {adapter.source}"
        entry = RegisterEntry(adapter.base, adapter.name, adapter.fingerprint, identity, encode(adapter))
        change = await self._store.put(entry, replace=call.replace)
        if change.verdict == "conflict":
            raise Conflict(
                f"model {adapter.base!r} has an adapter {adapter.name!r} with other content: unload it, or "
                "load this one with `replace`",
                reason="adapter_exists",
            )
        if full := _FULL.get(change.verdict):
            raise RateLimited(full.format(base=adapter.base), reason="adapter_limit")
        stored = _decoded(change)
        await self._publish(adapter.base, adapter.name, change, stored)
        return AdapterStored(adapter=stored, version=change.version)

    async def _delete(self, call: AdapterDelete) -> AdapterStored:
        change = await self._store.delete(call.base, call.name)
        await self._publish(call.base, call.name, change, None)
        return AdapterStored(adapter=_decoded(change), version=change.version)

    async def _list(self, query: AdapterList) -> AdapterPage:
        page = await self._store.page(query.cursor, PAGE_BYTES, query.known)
        adapters = [decode(record, Adapter) for record in page.records]
        return AdapterPage(adapters=adapters, version=page.version, cursor=page.cursor)

    async def _publish(self, base: str, name: str, change: RegisterChange, put: Adapter | None) -> None:
        """Publishes a change that is done; if the broker is away, readers find it with their next poll."""
        if change.before == change.version:
            return
        news = AdapterChanged(base=base, name=name, before=change.before, version=change.version, put=put)
        try:
            await self._bus.publish(subjects.ADAPTER_CHANGED, encode(news))
        except RyzError as error:
            log.warning("change not published", subject=subjects.ADAPTER_CHANGED, error=error.message)


def _decoded(change: RegisterChange) -> Adapter | None:
    return None if change.record is None else decode(change.record, Adapter)
