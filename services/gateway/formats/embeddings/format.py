"""The format of `POST /v1/embeddings`: from a body to generations, and from their vectors to an answer.

The inputs of a call are computed side by side, a bounded number at a time, so that a call with many of them
neither fills the queues of the groups nor takes all places of its tenant.
"""

import asyncio
import time
from collections.abc import Iterator
from functools import partial

from services.gateway.answering.call import Call, StartedCall
from services.gateway.answering.run_call import trace_headers
from services.gateway.formats.embeddings.call import (
    check_inputs,
    embedding_answer,
    embedding_requests,
    error_of_input,
)
from services.gateway.formats.embeddings.schema import EmbeddingRequest
from services.gateway.formats.fields.body_format import BodyFormat, CallOrigin
from services.gateway.formats.fields.rules import judge_fields
from services.gateway.settings import GatewaySettings
from shared.client import Embedding, InferenceClient
from shared.errors import RyzError
from shared.messages import GenerateRequest

SIDE_BY_SIDE = 16  # inputs of a call that are computed at a time
_MANY = 64  # vectors; more are encoded in a thread


class EmbeddingFormat(BodyFormat[EmbeddingRequest]):
    """The format.

    Args:
        settings: Limits of a body.
        client: Has the embeddings computed.
    """

    kind = "embedding"
    path = "/v1/embeddings"
    repeatable = False

    def __init__(self, settings: GatewaySettings, client: InferenceClient) -> None:
        super().__init__(EmbeddingRequest, self._call, settings)
        self._max_inputs = settings.constants.max_embedding_inputs
        self._client = client

    def _call(self, body: EmbeddingRequest, origin: CallOrigin) -> Call:
        unknown, left_out = judge_fields(body.model_extra, EmbeddingRequest.model_fields)
        check_inputs(body, self._max_inputs)
        return Call(
            kind=self.kind,
            request_id=origin.request_id,
            requests=embedding_requests(body, origin.request_id, origin.tenant),
            stream=False,
            timeout_s=body.timeout,
            unknown_fields=[*unknown, *body.unknown_inside],
            left_out=left_out,
            slots=min(SIDE_BY_SIDE, len(body.input)),
            whole=partial(self._embed, packed=body.encoding_format == "base64"),
        )

    async def _embed(self, started: StartedCall, *, packed: bool) -> bytes:
        found = await self._embed_all(started)
        outcome, model = started.caller.outcome, started.call.model
        outcome.group = found[0].group
        outcome.usages = [one.usage for one in found]
        if len(found) > _MANY:
            return await asyncio.to_thread(embedding_answer, model, found, packed=packed)
        return embedding_answer(model, found, packed=packed)

    async def _embed_all(self, started: StartedCall) -> list[Embedding]:
        """The embeddings in the order of the requests; the first error ends all."""
        requests = started.call.requests
        found: dict[int, Embedding] = {}
        todo = iter(enumerate(requests))
        deadline = time.monotonic() + started.timeout_s
        workers = [
            asyncio.create_task(self._embed_some(started, todo, found, deadline))
            for _ in range(min(SIDE_BY_SIDE, len(requests)))
        ]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        return [found[index] for index in range(len(requests))]

    async def _embed_some(
        self,
        started: StartedCall,
        todo: Iterator[tuple[int, GenerateRequest]],
        found: dict[int, Embedding],
        deadline: float,
    ) -> None:
        headers, several = trace_headers(started.caller.headers), len(started.call.requests) > 1
        for position, request in todo:
            left_s = max(0.001, deadline - time.monotonic())
            try:
                found[position] = await self._client.embed(request, timeout_s=left_s, headers=headers)
            except RyzError as error:
                raise error_of_input(error, position, several) from error
