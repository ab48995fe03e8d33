"""Runs requests of the leader itself after failures whose owner is unclear (`RequestCounts`).

A control is a short chat under a small grammar, which passes template, tokenizer, grammar, engine and the
reader of answers like any other request. It has no frames, and no metric counts it as a request.
"""

import asyncio
import uuid

import structlog

from services.worker.domain.generation.generation import Generation
from services.worker.domain.generation.request_counts import outcome_of
from services.worker.leader.context import LeaderContext
from services.worker.leader.engine_state import EngineState
from services.worker.leader.intake.preparation import Preparation
from services.worker.leader.request_table import RequestTable
from services.worker.model_files.model import Model
from shared.errors import Cancelled, RyzError
from shared.messages import ChatMessage, GenerateRequest, Route, Sampling, StructuredOutput

log = structlog.get_logger(__name__)
TENANT = "leader-control"
DEADLINE_S = 10.0
PAUSE_S = 0.25  # between two controls
_ASKED = "Say yes or no."
_CHOICES = ("yes", "no")
_TOKENS = 8


class ControlRuns:
    """Decides unclear failures.

    Args:
        engine: A control waits until it is up.
        table: Has the counts, and says when a control is wanted.
        model: What it can be asked.
    """

    def __init__(
        self,
        context: LeaderContext,
        engine: EngineState,
        table: RequestTable,
        preparation: Preparation,
        model: Model,
    ) -> None:
        self._context = context
        self._engine = engine
        self._table = table
        self._preparation = preparation
        self._model = model

    async def run_forever(self) -> None:
        """Runs a control whenever one is wanted, until cancelled."""
        table, metrics = self._table, self._context.metrics.faults
        while True:
            await table.doubt.wait()
            if self._engine.scheduler is not None:
                table.counts.begin_control()
                error = await self._run()
                outcome = outcome_of(error)
                metrics.controls.labels(outcome).inc()
                number = table.counts.count_control(outcome, self._context.clock())
                metrics.confined.inc(number)
                if outcome == "failed":
                    log.error("the group fails its own request", why=str(error))
                elif number:
                    log.warning("failures are confined to their requests", number=number)
                if not table.counts.wants_control:
                    table.doubt.clear()
            await asyncio.sleep(PAUSE_S)

    async def _run(self) -> RyzError | None:
        """Returns how a control ends: without an error if it was answered."""
        context, ended = self._context, asyncio.get_running_loop().create_future()
        now = context.clock()

        def on_end(error: RyzError | None) -> None:
            if not ended.done():
                ended.set_result(error)

        generation = Generation(
            request=self._request(), reply_to="", deadline=now + DEADLINE_S, arrived=now, on_end=on_end
        )
        self._table.open_request(generation)
        try:
            self._preparation.prepare_request(generation, Route(group=context.group, reason="control"))
            error: RyzError | None = await ended
        finally:
            self._table.fail_request(generation, Cancelled("the leader stops"))
        return error

    def _request(self) -> GenerateRequest:
        model, chats = self._model, self._model.template is not None
        enforced = model.tokenizer.has_token_bytes and bool(model.eos_ids)
        return GenerateRequest(
            request_id=f"control-{uuid.uuid4().hex}",
            model=model.name,
            messages=[ChatMessage(role="user", content=_ASKED)] if chats else None,
            prompt=None if chats else _ASKED,
            sampling=Sampling(max_tokens=_TOKENS, temperature=0.0),
            tenant=TENANT,
            priority=10,
            kv="recompute",
            structured=StructuredOutput(kind="choice", choices=list(_CHOICES)) if enforced else None,
        )
