"""Runs the KV state service: `python -m services.kvstate`. Wires settings, store, handlers and life together.

Ready means: the broker is connected and Redis answers. Without Redis the service lives on and says so.
"""

import time
from contextlib import AsyncExitStack
from typing import Any, cast

from services.kvstate.guarded_store import GuardedStore
from services.kvstate.handlers import HandlerLimits, Handlers
from services.kvstate.metrics import Metrics
from services.kvstate.redis_store import RedisStore
from services.kvstate.settings import Settings
from shared.circuit import Circuit, CircuitLimits
from shared.lifecycle import Service, run
from shared.settings import load

CALL_KINDS = 4


async def setup(service: Service, stack: AsyncExitStack) -> None:
    """Connects everything; see `shared.lifecycle.run`."""
    settings = cast(Settings, service.settings)
    redis = RedisStore(
        settings.redis_url,
        ttl_s=settings.session_ttl_s,
        timeout_s=settings.redis_timeout_s,
        max_connections=CALL_KINDS * settings.kvstate_max_concurrent + 1,  # and one for the probe
    )
    circuit = Circuit(CircuitLimits(settings.redis_circuit_failures, settings.redis_probe_s))
    store = GuardedStore(redis, circuit, timeout_s=settings.redis_timeout_s, clock=time.monotonic)
    stack.push_async_callback(store.close)
    bus = await service.connect_bus(stack)
    metrics = Metrics(service.registry)
    metrics.store_up.set_function(lambda: 0.0 if circuit.open else 1.0)
    limits = HandlerLimits(
        max_concurrent=settings.kvstate_max_concurrent,
        max_pending=settings.kvstate_max_pending,
        max_record_bytes=settings.session_max_bytes,
        ttl_s=settings.session_ttl_s,
    )
    handlers = Handlers(bus, store, metrics, limits)

    def detail() -> dict[str, Any]:
        return {
            "store": "away" if circuit.open else "up",
            "sessions": store.last_count,
            "store_losses": circuit.opened_total,
        }

    await store.probe()
    service.spawn(store.watch(settings.redis_check_s, settings.redis_probe_s), "watch session store")
    service.add_check("session store", lambda: not circuit.open)
    service.set_detail(detail)
    service.on_drain(handlers.stop)
    await handlers.start()
    await service.answer_status(bus)
    await service.serve_admin(stack)
    service.ready()


def main() -> None:
    """The command."""
    run(load(Settings), "kvstate", setup)


if __name__ == "__main__":
    main()
