"""Orders adapters from the ranks, follows each load to its end, and ends requests whose adapter is refused.

What is loaded and what makes room is decided in `domain/adapters/`. A load fails by what is in the files, so
that is the request's fault and does not count against the group.
"""

import asyncio

import structlog

from services.worker.domain.adapters.pool import SlotOrder
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.leader.context import LeaderContext
from services.worker.leader.engine_state import EngineState
from services.worker.leader.request_table import RequestTable
from services.worker.rank_protocol.adapters import AdapterLoaded, LoadAdapter
from services.worker.rank_protocol.failures import EngineFailed
from shared.errors import InvalidRequest

log = structlog.get_logger(__name__)


class AdapterLoads:
    """The loads under way.

    Args:
        engine: Loads the adapters; its scheduler says which.
        table: Has the requests.
    """

    def __init__(self, context: LeaderContext, engine: EngineState, table: RequestTable) -> None:
        self._group = context.group
        self._engine = engine
        self._table = table
        self._metrics = context.metrics.adapters
        self._clock = context.clock
        self._last_order = 0

    def order_loads(self, scheduler: Scheduler) -> None:
        """Gives the ranks what a plan made necessary, and ends requests whose adapter cannot be loaded."""
        for sequence, reason in scheduler.adapters.take_refused():
            generation = self._table.by_key.get(sequence.request_id)
            if generation is not None:
                refusal = _refusal(generation.request.model, reason, self._group)
                self._table.fail_request(generation, refusal)
        step = scheduler.order_step
        if step < 0:
            return  # it is asked for again with the next plan
        for order in scheduler.adapters.take_orders():
            self._order(scheduler, order, step)

    def _order(self, scheduler: Scheduler, order: SlotOrder, step: int) -> None:
        self._last_order += 1
        adapter = order.adapter
        message = LoadAdapter(
            order_id=self._last_order,
            slot=order.slot,
            source=adapter.source if adapter is not None else "",
            fingerprint=adapter.fingerprint if adapter is not None else "",
            after_step=step,
        )
        try:
            future = asyncio.ensure_future(self._engine.engine.load_adapter(message))
        except EngineFailed:
            return  # the next step reports it, too

        def done(answer: asyncio.Future[AdapterLoaded]) -> None:
            lost = answer.cancelled() or answer.exception() is not None  # and with it the engine
            if not lost and adapter is not None and scheduler is self._engine.scheduler:
                self._end_load(scheduler, adapter.fingerprint, answer.result())

        future.add_done_callback(done)

    def _end_load(self, scheduler: Scheduler, fingerprint: str, answer: AdapterLoaded) -> None:
        scheduler.adapters.end_load(fingerprint, answer.error, self._clock(), answer.seconds)
        self._metrics.loads.labels("failed" if answer.error else "loaded").inc()
        if answer.error:
            log.warning("an adapter cannot be loaded", fingerprint=fingerprint, why=answer.error)
        else:
            self._metrics.load_seconds.observe(answer.seconds)
            log.info(
                "an adapter is loaded",
                fingerprint=fingerprint,
                loaded_bytes=answer.num_bytes,
                load_s=round(answer.seconds, 3),
            )
        self._engine.work.set()


def _refusal(model: str, reason: str, group: str) -> InvalidRequest:
    return InvalidRequest(
        f"the adapter of {model} cannot be loaded by group {group}: {reason}",
        param="model",
        reason="adapter_not_loaded",
    )
