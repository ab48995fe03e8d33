"""Answers requests of the protocol by the core: `ModelInfer`, and each request of a stream."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec
import structlog

from services.gateway.admission.answer_headers import REPLAYED
from services.gateway.admission.errors.refusals import HttpRefusal, answer_for
from services.gateway.admission.request_headers import SESSION_HEADERS
from services.gateway.answering.direct_calls import DirectCall
from services.gateway.answering.events.ports import DONE
from services.gateway.answering.formatted_answer import CallAnswer
from services.gateway.transports.grpc.protocol.inference_pb2 import ModelInferRequest, ModelInferResponse
from services.gateway.transports.grpc.serving.call_failures import CUT, failure_of_call
from services.gateway.transports.grpc.serving.call_metadata import (
    SHOWN,
    Headers,
    add_request_headers,
    headers_of,
    peer_address,
    shown_metadata,
)
from services.gateway.transports.grpc.serving.context import Context
from services.gateway.transports.grpc.serving.parts import GrpcParts
from services.gateway.transports.grpc.translation.inference_answer import AnswerPart, ResponseMaker
from services.gateway.transports.grpc.translation.inference_request import InferenceCall, read_call
from shared.errors import InvalidRequest, RyzError, SessionNotFound

log = structlog.get_logger(__name__)

_CHAT, _TEXT = "/v1/chat/completions", "/v1/completions"
_answer = msgspec.json.Decoder(AnswerPart)
Write = Callable[[ModelInferResponse], Awaitable[None]]
# headers as parameters of responses
_PARAMETERS = {b"x-request-id": "request_id", b"x-ryz-group": "group", b"x-ryz-ignored": "ignored"}
# on a stream, whose trailing metadata are of no single request: in the last response, the first for calls
# that name a session
_OF_SESSION = {b"x-ryz-session": "session"}
_OF_REPEATS = {REPLAYED[0]: "idempotent_replayed"}


class SingleInference:
    """Answers requests.

    Args:
        parts: What all calls share.
    """

    def __init__(self, parts: GrpcParts) -> None:
        self._parts = parts

    async def infer(self, request: ModelInferRequest, context: Context) -> ModelInferResponse:
        """Answers a call of `ModelInfer`; raises what becomes its error."""
        call = read_call(request)
        if call.stream:
            raise InvalidRequest("an answer in pieces needs ModelStreamInfer", param="stream")
        headers = headers_of(context.invocation_metadata() or (), single=True)
        add_request_headers(headers, call, context.time_remaining())
        responses: list[ModelInferResponse] = []

        async def keep(response: ModelInferResponse) -> None:
            responses.append(response)

        shown = await self.respond(call, headers, context.peer(), keep)
        context.set_trailing_metadata(tuple(shown_metadata(shown, SHOWN)))
        return responses[0]

    async def respond(
        self, call: InferenceCall, headers: Headers, peer: str, write: Write, *, streamed: bool = False
    ) -> Headers:
        """Writes the responses to a request as they come. Cancelling this cancels the generation.

        Args:
            call: The request.
            headers: Of the call, by names of HTTP.
            peer: Of the caller, as gRPC names it.
            write: Sends a response.
            streamed: They are sent on a stream.

        Returns:
            The headers of the answer.

        Raises:
            GrpcFailure: The answer is an error.
            Exception: What `write` raises.
        """
        began_s, good, served = asyncio.get_running_loop().time(), False, True
        form = self._parts.needs.direct.formats[_CHAT if call.is_chat else _TEXT]
        whole: list[bytes] = []
        ended = False

        async def take(answer: CallAnswer, found: DirectCall) -> None:
            nonlocal ended
            if call.stream:
                await self._put_parts(call, answer, found)
                ended = True
            else:
                whole.append(await answer.body())
                found.carrier.bytes_sent = len(whole[0])

        try:
            found = await self._parts.needs.direct.run(
                form, call.body, headers, take, write, client=peer_address(peer)
            )
            if found.error is not None:
                served = found.error.code != "model_not_found"
                raise failure_of_call(found.error, found.headers, begun=found.begun)
            if whole:
                maker = ResponseMaker(call, _parameters(found))
                last = _last_parameters(call, found) if streamed else None
                await write(maker.whole(_answer.decode(whole[0]), last))
            elif not ended:
                raise CUT
            good = True
        finally:
            if served:
                self._parts.counts.count(call.model, asyncio.get_running_loop().time() - began_s, good=good)
        if call.ends_session and call.session_id:
            await self._delete_session(call.session_id, headers, peer)
        return found.headers

    async def _put_parts(self, call: InferenceCall, answer: CallAnswer, found: DirectCall) -> None:
        events, carrier = answer.events(), found.carrier
        with self._parts.needs.direct.open_stream:
            await events.open(self._parts.needs.direct.header_wait_s)
            maker = ResponseMaker(call, _parameters(found))
            carrier.started = True
            while not events.ended:
                for _, batch in await events.next_batch():
                    for event in batch:
                        if event == DONE:
                            responses = [maker.last(_last_parameters(call, found))]
                        else:
                            responses = maker.parts(_answer.decode(event[1]))
                        await carrier.put(responses, sum(response.ByteSize() for response in responses))

    async def _delete_session(self, session_id: str, headers: Headers, peer: str) -> None:
        """Deletes the session of a sequence that has ended."""
        sessions = self._parts.needs.sessions
        try:
            await sessions.delete(sessions.admit(headers, peer_address(peer), "DELETE"), session_id)
        except SessionNotFound:
            pass
        except (RyzError, HttpRefusal) as error:
            log.warning("the session of a sequence that ended is kept", status=answer_for(error).status)


def _parameters(call: DirectCall, names: Mapping[bytes, str] = _PARAMETERS) -> dict[str, str]:
    """Headers of the answer as parameters of its responses."""
    return {names[name]: value.decode() for name, value in call.headers.items() if name in names}


def _last_parameters(call: InferenceCall, found: DirectCall) -> dict[str, str]:
    """Parameters of the last response to a request on a stream."""
    named = call.session_id or not found.caller.headers.keys().isdisjoint(SESSION_HEADERS)
    return _parameters(found, _OF_SESSION | _OF_REPEATS if named else _OF_REPEATS)
