"""Answers the calls that put adapters into the register and take them out.

A leader of the base reads the files first, so what is in the register was seen to be usable on one host.
"""

import time
from typing import NoReturn

import structlog

from services.router.context import RouterContext
from services.router.domain.models.refusals import WAKING
from shared import subjects
from shared.bus import Message, NoResponders, RequestTimedOut, Subscription
from shared.bus.endpoint import Endpoint, call
from shared.client.calls.model_list import unknown_model
from shared.errors import (
    Conflict,
    DeadlineExceeded,
    InvalidRequest,
    ModelNotFound,
    RateLimited,
    Unavailable,
)
from shared.messages import (
    Adapter,
    AdapterDelete,
    AdapterInspected,
    AdapterManaged,
    AdapterPut,
    AdapterStored,
    InspectAdapter,
    LoadAdapterCall,
    UnloadAdapterCall,
    Wire,
)
from shared.telemetry.repeated import RepeatedLog

INSPECT_S = 20.0  # a leader reads all bytes of the files, perhaps from a slow disk
STORE_S = 2.0
AT_ONCE = 4
RETRY_S = 1.0
log = structlog.get_logger(__name__)


class AdapterLoadCalls:
    """Call `take_calls` when the router is ready, and `stop_taking` before it ends."""

    def __init__(self, context: RouterContext) -> None:
        self._bus = context.bus
        self._fleet = context.fleet
        self._models = context.state.models
        self._adapters = context.state.adapters
        self._accounts = context.state.accounts
        self._models_changed = context.models_changed
        self._metrics = context.metrics
        self._clock = context.clock
        self._repeated = RepeatedLog(log)
        self._taking: list[Subscription] = []

    async def take_calls(self) -> None:
        """Subscribes as a member of the routers' queue group."""
        endpoint, queue = Endpoint(self._bus, self._report_bad), subjects.ROUTER_QUEUE
        load = endpoint.handler(LoadAdapterCall, self.load_adapter)
        unload = endpoint.handler(UnloadAdapterCall, self.unload_adapter)
        self._taking = [
            await self._bus.subscribe(subjects.LOAD_ADAPTER, load, queue=queue, max_concurrent=AT_ONCE),
            await self._bus.subscribe(subjects.UNLOAD_ADAPTER, unload, queue=queue, max_concurrent=AT_ONCE),
        ]

    async def stop_taking(self) -> None:
        """Takes no more calls, and ends those that were taken."""
        for subscription in self._taking:
            await subscription.drain()
        self._taking.clear()

    async def load_adapter(self, asked: LoadAdapterCall, _: Message) -> AdapterManaged:
        """Has a leader read an adapter, and puts it into the register.

        Raises:
            ModelNotFound: There is no such base.
            InvalidRequest: The files cannot be used; a leader of the base says why.
            Conflict: The name is taken, by a model or by an adapter with other content.
            RateLimited: The base or the tenant has as many adapters as it may have.
            Unavailable: No group of the base is ready, or the KV state service does not answer.
            DeadlineExceeded: A leader takes too long to read the files.
        """
        base = self._base_of(asked.base)
        if self._models.has_model(f"{base}:{asked.name}", self._fleet):
            raise Conflict(
                f"a model is served under the name {base}:{asked.name}: give the adapter another one",
                reason="model_exists",
            )
        self._check_room(base, asked)
        found = await self._inspect(base, asked)
        adapter = Adapter(
            name=asked.name,
            base=base,
            source=asked.source,
            fingerprint=found.fingerprint,
            rank=found.rank,
            num_bytes=found.num_bytes,
            tenant=asked.tenant,
            created_s=int(time.time()),
        )
        stored = await self._register(
            subjects.ADAPTER_PUT, AdapterPut(adapter=adapter, replace=asked.replace)
        )
        log.info("adapter loaded", model=base, adapter=asked.name, fingerprint=found.fingerprint,
                 adapter_rank=found.rank, version=stored.version)  # fmt: skip
        return AdapterManaged(adapter=stored.adapter or adapter)

    async def unload_adapter(self, asked: UnloadAdapterCall, _: Message) -> AdapterManaged:
        """Takes an adapter out of the register. Leaders keep it while sequences run with it.

        Raises:
            ModelNotFound: The base has no such adapter.
            Unavailable: The KV state service does not answer.
        """
        base = self._alias_of(asked.base) or asked.base  # adapters of a base that is gone are removed as well
        stored = await self._register(subjects.ADAPTER_DELETE, AdapterDelete(base=base, name=asked.name))
        if stored.adapter is None:
            raise ModelNotFound(f"model {base!r} has no adapter {asked.name!r}", param="name")
        log.info("adapter unloaded", model=base, adapter=asked.name, version=stored.version)
        return AdapterManaged(adapter=stored.adapter)

    def _check_room(self, base: str, asked: LoadAdapterCall) -> None:
        """Raises `RateLimited` if the tenant has as many adapters as it may have."""
        own = self._accounts.limits(asked.tenant)
        if own is None or not own.adapters:
            return
        others = sum(
            one.tenant == asked.tenant and (one.base, one.name) != (base, asked.name)
            for one in self._adapters.list_all()
        )
        if others >= own.adapters:
            raise RateLimited(
                f"tenant {asked.tenant!r} has {others} adapters and may have {own.adapters}: unload one",
                reason="tenant_adapters",
            )

    async def _inspect(self, base: str, asked: LoadAdapterCall) -> AdapterInspected:
        question, subject = InspectAdapter(model=base, source=asked.source), subjects.inspect_adapter(base)
        try:
            return await call(self._bus, subject, question, AdapterInspected, timeout_s=INSPECT_S)
        except NoResponders:
            if asked.found is not None:
                return asked.found
            self._refuse_without_leader(base, asked.name)
        except RequestTimedOut:
            raise DeadlineExceeded(
                f"a leader of {base!r} did not read {asked.source} within {INSPECT_S:g} s"
            ) from None

    def _refuse_without_leader(self, base: str, name: str) -> NoReturn:
        """Raises the refusal; a model that a host can load is woken, as by a request."""
        now = self._clock()
        groups = [one.heartbeat for one in self._fleet.groups() if one.heartbeat.model.name == base]
        if groups and all(one.guest is not None for one in groups):
            raise InvalidRequest(
                f"model {base!r} is served by guests alone, which load no adapters; load it for a model that "
                "has groups of its own",
                param="base",
                reason="no_adapters",
            )
        ready = any(card.name == base for card in self._fleet.models(now))
        refusal = None if ready else self._models.refusal(base, self._fleet, now)
        if refusal is not None:
            if refusal.reason == WAKING and self._models.demand.note(base, ("", f"adapter {name}"), now):
                self._models_changed.set()
            raise refusal.error()
        raise Unavailable(
            f"no group of model {base!r} is there to read the adapter",
            reason="no_group",
            retry_after_s=RETRY_S,
        )

    async def _register(self, subject: str, change: Wire) -> AdapterStored:
        try:
            return await call(self._bus, subject, change, AdapterStored, timeout_s=STORE_S)
        except NoResponders:
            raise Unavailable(
                "no KV state service is running, which keeps the adapters",
                reason="adapters_unknown",
                retry_after_s=RETRY_S,
            ) from None

    def _base_of(self, name: str) -> str:
        """The name of the model that is meant; raises `ModelNotFound`."""
        if self._models.has_model(name, self._fleet):
            return name
        found = self._alias_of(name)
        if found is None:
            served = {card.name for card in self._fleet.models(self._clock())}
            raise unknown_model(name, sorted(served.union(self._models.offered.names())))
        return found

    def _alias_of(self, alias: str) -> str | None:
        """The offered model that has this other name."""
        if self._models.has_model(alias, self._fleet):
            return None
        states = self._models.states(self._fleet, self._clock())
        return next((state.card.name for state in states if alias in state.aliases), None)

    def _report_bad(self, message: Message, error: InvalidRequest) -> None:
        self._repeated.warning("bad message", subject=message.subject, error=error.message)
        self._metrics.event("bad_query")
