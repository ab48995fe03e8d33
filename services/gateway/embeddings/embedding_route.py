"""The route of embeddings: from a body to generations, and from their vectors to an answer.

The inputs of a call are computed side by side, a bounded number at a time, so that a call with many of them
neither fills the queues of the groups nor takes all places of its tenant.
"""

import asyncio
import time
from collections.abc import Iterator

from services.gateway.bodies.body_parser import check_content_type, parse_body
from services.gateway.bodies.large_bodies import is_large
from services.gateway.embeddings.embedding_call import (
    check_inputs,
    embedding_answer,
    embedding_requests,
    error_of_input,
)
from services.gateway.embeddings.embedding_schema import EmbeddingRequest
from services.gateway.generation.generation_route import trace_headers
from services.gateway.http.request_headers import time_limit_s
from services.gateway.http.serving_route import GatewayContext, HttpExchange, ServingRoute, body_party
from shared.client import Embedding
from shared.errors import RyzError
from shared.messages import GenerateRequest
from shared.web.limited_protocol import CONNECTION

SIDE_BY_SIDE = 16  # inputs of a call that are computed at a time
_MANY = 64  # vectors; more are encoded in a thread


class EmbeddingRoute(ServingRoute):
    """Answers `POST /v1/embeddings`."""

    def __init__(self, context: GatewayContext) -> None:
        super().__init__("/v1/embeddings", context)

    async def serve_request(self, exchange: HttpExchange) -> None:
        """See `ServingRoute`."""
        context, settings = self.context, self.context.settings
        context.check_accepting()
        exchange.tenant = context.keyring.tenant(exchange.headers.get(b"authorization", b""))
        context.rates.take_tokens(exchange.tenant, time.monotonic())
        context.places.check_units(exchange.tenant)
        check_content_type(exchange.headers)
        raw = await self._read_body(exchange)
        self.take_places(exchange, 1)
        if is_large(raw):
            async with context.large.turn(exchange.tenant):
                body = parse_body(raw, EmbeddingRequest, settings.max_body_values)
        else:
            body = parse_body(raw, EmbeddingRequest, settings.max_body_values)
        del raw
        exchange.model = body.model
        check_inputs(body, settings.max_embedding_inputs)
        if body.model_extra:
            context.metrics.unknown_fields.inc(len(body.model_extra))
        timeout_s = time_limit_s(
            exchange.headers,
            body.timeout,
            default_s=settings.default_timeout_s,
            max_s=settings.max_timeout_s,
        )
        self.take_places(exchange, min(SIDE_BY_SIDE, len(body.input)) - 1)
        requests = embedding_requests(body, exchange.request_id, exchange.tenant)
        async with self.running_request(exchange, timeout_s):
            found = await self._embed_all(exchange, requests, timeout_s)
            exchange.outcome.group = found[0].group
            exchange.outcome.usages = [one.usage for one in found]
            packed = body.encoding_format == "base64"
            if len(found) > _MANY:
                answer = await asyncio.to_thread(embedding_answer, body.model, found, packed=packed)
            else:
                answer = embedding_answer(body.model, found, packed=packed)
            await exchange.reply.send_whole(200, answer, exchange.outcome.headers())

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
        headers = trace_headers(exchange.headers)
        for place, request in todo:
            left_s = max(0.001, deadline - time.monotonic())
            try:
                found[place] = await self.context.client.embed(request, timeout_s=left_s, headers=headers)
            except RyzError as error:
                raise error_of_input(error, place, several) from error

    async def _read_body(self, exchange: HttpExchange) -> bytes:
        raw = await self.context.bodies.read_body(
            exchange.receive,
            exchange.headers,
            exchange.tenant,
            body_party(self.context, exchange.tenant, exchange.scope),
            arrived=exchange.scope[CONNECTION].body_arrived,
        )
        exchange.held += len(raw)
        exchange.body_read = True
        self.context.metrics.request_bytes.inc(len(raw))
        return raw
