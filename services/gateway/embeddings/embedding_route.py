"""The route of embeddings: from a body to generations, and from their vectors to an answer.

The inputs of a call are computed side by side, a bounded number at a time, so that a call with many of them
neither fills the queues of the groups nor takes all places of its tenant.
"""

import asyncio
import time
from collections.abc import Iterator

from services.gateway.answering.background_calls import in_background
from services.gateway.answering.context import GatewayContext
from services.gateway.answering.new_calls import counted_for
from services.gateway.answering.run_call import trace_headers
from services.gateway.embeddings.embedding_call import (
    check_inputs,
    embedding_answer,
    embedding_requests,
    error_of_input,
)
from services.gateway.embeddings.embedding_schema import EmbeddingRequest
from services.gateway.http.serving_route import HttpExchange
from services.gateway.tokens.json_route import JsonRoute
from shared.client import Embedding
from shared.errors import RyzError
from shared.messages import GenerateRequest

SIDE_BY_SIDE = 16  # inputs of a call that are computed at a time
_MANY = 64  # vectors; more are encoded in a thread


class EmbeddingRoute(JsonRoute[EmbeddingRequest]):
    """Answers `POST /v1/embeddings`."""

    def __init__(self, context: GatewayContext) -> None:
        super().__init__("/v1/embeddings", EmbeddingRequest, context)

    def timeout_in(self, body: EmbeddingRequest) -> float | None:
        """See `JsonRoute`."""
        return body.timeout

    async def answer_body(self, body: EmbeddingRequest, exchange: HttpExchange, timeout_s: float) -> bytes:
        """See `JsonRoute`."""
        exchange.caller.model = body.model
        check_inputs(body, self.context.settings.constants.max_embedding_inputs)
        self.take_places(exchange, min(SIDE_BY_SIDE, len(body.input)) - 1)
        made = embedding_requests(body, exchange.caller.request_id, exchange.caller.tenant)
        requests = counted_for(
            in_background(made, exchange.caller.background), exchange.caller.tenant, exchange.caller.party
        )
        found = await self._embed_all(exchange, requests, timeout_s)
        exchange.caller.outcome.group = found[0].group
        exchange.caller.outcome.usages = [one.usage for one in found]
        packed = body.encoding_format == "base64"
        if len(found) > _MANY:
            return await asyncio.to_thread(embedding_answer, body.model, found, packed=packed)
        return embedding_answer(body.model, found, packed=packed)

    async def _embed_all(
        self, exchange: HttpExchange, requests: list[GenerateRequest], timeout_s: float
    ) -> list[Embedding]:
        """The embeddings in the order of the requests; the first error ends all."""
        found: dict[int, Embedding] = {}
        todo = iter(enumerate(requests))
        deadline = time.monotonic() + timeout_s
        workers = [
            asyncio.create_task(self._embed_some(exchange, todo, found, deadline, several=len(requests) > 1))
            for _ in range(min(SIDE_BY_SIDE, len(requests)))
        ]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        return [found[place] for place in range(len(requests))]

    async def _embed_some(
        self,
        exchange: HttpExchange,
        todo: Iterator[tuple[int, GenerateRequest]],
        found: dict[int, Embedding],
        deadline: float,
        *,
        several: bool,
    ) -> None:
        headers = trace_headers(exchange.caller.headers)
        for place, request in todo:
            left_s = max(0.001, deadline - time.monotonic())
            try:
                found[place] = await self.context.client.embed(request, timeout_s=left_s, headers=headers)
            except RyzError as error:
                raise error_of_input(error, place, several) from error
