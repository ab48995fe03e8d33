"""Answers requests of the protocol by calls of HTTP routes: `ModelInfer`, and each request of a stream."""

import asyncio
from collections.abc import AsyncGenerator
from urllib.parse import quote

import msgspec
import structlog

from services.gateway.grpc.protocol.inference_pb2 import ModelInferRequest, ModelInferResponse
from services.gateway.grpc.serving.call_failures import CUT, failure_of_answer, failure_of_object
from services.gateway.grpc.serving.call_metadata import (
    SHOWN,
    Headers,
    add_request_headers,
    headers_of,
    peer_address,
    shown_metadata,
)
from services.gateway.grpc.serving.door_parts import DoorParts
from services.gateway.grpc.serving.grpc_context import Context
from services.gateway.grpc.translation.inference_answer import AnswerPart, ResponseMaker
from services.gateway.grpc.translation.inference_request import InferenceCall, read_call
from services.gateway.inner.inner_calls import AnswerCut, InnerAnswer
from shared.errors import InvalidRequest

log = structlog.get_logger(__name__)

_answer = msgspec.json.Decoder(AnswerPart)
_DONE = b"[DONE]"
# headers as parameters of responses
_TOLD = {b"x-request-id": "request_id", b"x-ryz-group": "group", b"x-ryz-ignored": "ignored"}


class SingleInference:
    """Answers requests.

    Args:
        parts: What all calls share.
    """

    def __init__(self, parts: DoorParts) -> None:
        self._parts = parts

    async def infer(self, request: ModelInferRequest, context: Context) -> ModelInferResponse:
        """Answers a call of `ModelInfer`; raises what becomes its error."""
        call = read_call(request)
        if call.stream:
            raise InvalidRequest("an answer in pieces needs ModelStreamInfer", param="stream")
        headers = headers_of(context.invocation_metadata() or (), single=True)
        add_request_headers(headers, call, context.time_remaining())
        shown: Headers = {}
        (response,) = [part async for part in self.responses(call, headers, context.peer(), shown)]
        context.set_trailing_metadata(tuple(shown_metadata(shown, SHOWN)))
        return response

    async def responses(
        self, call: InferenceCall, headers: Headers, peer: str, shown: Headers, *, streamed: bool = False
    ) -> AsyncGenerator[ModelInferResponse, None]:
        """Yields the responses to a request as they come.

        Closing the iterator cancels the generation.

        Args:
            call: The request.
            headers: Of the HTTP route.
            peer: Of the caller, as gRPC names it.
            shown: Takes the headers of the answer.
            streamed: They are sent on a stream.

        Raises:
            GrpcFailure: The route's answer is an error.
        """
        began_s, good, served = asyncio.get_running_loop().time(), False, True
        try:
            async with self._parts.inner.call(
                call.path, call.body, list(headers.items()), client=peer_address(peer)
            ) as answer:
                if answer.status != 200:
                    failure = failure_of_answer(answer.status, answer.headers, await answer.read())
                    served = failure.code != "model_not_found"
                    raise failure
                shown.update(answer.headers)
                told = {_TOLD[name]: value.decode() for name, value in shown.items() if name in _TOLD}
                maker = ResponseMaker(call, told)
                if call.stream:
                    async for response in _streamed(maker, answer):
                        yield response
                else:
                    yield maker.whole(_answer.decode(await answer.read()), streamed=streamed)
            good = True
        except AnswerCut:
            raise CUT from None
        finally:
            if served:
                self._parts.counts.count(call.model, asyncio.get_running_loop().time() - began_s, good=good)
        if call.ends_session and call.session_id:
            await self._delete_session(call.session_id, headers)

    async def _delete_session(self, session_id: str, headers: Headers) -> None:
        """Deletes the session of a sequence that has ended."""
        key = [(b"authorization", headers[b"authorization"])] if b"authorization" in headers else []
        async with self._parts.inner.call(
            f"/v1/sessions/{quote(session_id, safe='')}", headers=key, method="DELETE"
        ) as answer:
            if answer.status not in {200, 204, 404}:
                log.warning("the session of a sequence that ended is kept", status=answer.status)


async def _streamed(maker: ResponseMaker, answer: InnerAnswer) -> AsyncGenerator[ModelInferResponse, None]:
    async for event in answer.events():
        if event.data == _DONE:
            yield maker.last()
            return
        part = _answer.decode(event.data)
        if part.error is not None:
            raise failure_of_object(part.error, {})
        for response in maker.parts(part):
            yield response
    raise AnswerCut
