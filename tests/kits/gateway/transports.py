"""One chat completion by each transport of a gateway, with what its caller was told in one shape."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

import grpc
import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from services.gateway.transports.grpc.protocol import inference_pb2 as pb
from shared import subjects
from shared.bus import Message
from tests.kits.gateway.gateway import Gateway
from tests.kits.gateway.grpc_client import bare_client
from tests.kits.memory_bus import MemoryBus
from tests.kits.waiting import PATIENCE_S

CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class TransportAnswer:
    """What a caller was told.

    Attributes:
        code: Of the error; empty: there was none.
        text: Of the answer.
        message: Of the error.
        session_id: Of the answer; empty: none was told.
        asked: How often it was asked until a client had the answer.
    """

    code: str = ""
    text: str = ""
    message: str = ""
    session_id: str = ""
    asked: int = 1


Ask = Callable[..., Coroutine[Any, Any, TransportAnswer]]


def _body(model: str, stream: bool, fields: dict[str, Any]) -> dict[str, Any]:
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}]} | fields
    return body | {"stream": True} if stream else body


def _failed(error: dict[str, Any]) -> TransportAnswer:
    return TransportAnswer(code=error["code"], message=error["message"])


def _spoken(events: list[dict[str, Any]]) -> str:
    choices = [event["choices"] for event in events]
    return "".join(one[0]["delta"].get("content") or "" for one in choices if one)


def _of_http(stream: bool) -> Ask:
    async def ask(
        gateway: Gateway, *, model: str = "demo", key: str = "", session: str = "", **fields: Any
    ) -> TransportAnswer:
        headers = _headers(key, session)
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            answer = await client.post(gateway.url + CHAT, json=_body(model, stream, fields), headers=headers)
        if answer.status_code != 200:
            return _failed(answer.json()["error"])
        session_id = answer.headers.get("x-session-id", "")
        if not stream:
            return TransportAnswer(
                text=answer.json()["choices"][0]["message"]["content"], session_id=session_id
            )
        lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
        events = [json.loads(line) for line in lines if line != "[DONE]"]
        if "error" in events[-1]:
            return _failed(events[-1]["error"])
        return TransportAnswer(text=_spoken(events), session_id=session_id)

    return ask


def _headers(key: str, session: str) -> dict[str, str]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return headers | ({"X-Session-Id": session} if session else {})


def _of_websocket(stream: bool) -> Ask:
    async def ask(gateway: Gateway, **asked: Any) -> TransportAnswer:
        try:
            return await ask_socket(gateway, **asked)
        except InvalidStatus as refused:  # it is no WebSocket: the answer is one of HTTP
            return _failed(json.loads(refused.response.body or b"{}")["error"])

    async def ask_socket(
        gateway: Gateway, *, model: str = "demo", key: str = "", session: str = "", **fields: Any
    ) -> TransportAnswer:
        async with connect(f"ws://127.0.0.1:{gateway.port}/v1/realtime") as socket:
            if key:
                await socket.send(json.dumps({"type": "auth", "api_key": key}))
            request: dict[str, Any] = {"type": "request", "id": "a", "body": _body(model, stream, fields)}
            if session:
                request["headers"] = {"X-Session-Id": session}
            await socket.send(json.dumps(request))
            events, session_id = list[dict[str, Any]](), ""
            async with asyncio.timeout(PATIENCE_S):
                async for raw in socket:
                    message = json.loads(raw)
                    session_id = message.get("headers", {}).get("x-session-id", session_id)
                    if message["type"] == "error":
                        return _failed(message["data"]["error"])
                    if message["type"] == "answer":
                        text = message["data"]["choices"][0]["message"]["content"]
                        return TransportAnswer(text=text, session_id=session_id)
                    if message["type"] == "event":
                        events.append(message["data"])
                        if "error" in message["data"]:
                            return _failed(message["data"]["error"])
                    if message["type"] == "done":
                        return TransportAnswer(text=_spoken(events), session_id=session_id)
        raise AssertionError("the connection was closed before the end of the answer")

    return ask


def _of_grpc(stream: bool) -> Ask:
    async def ask(
        gateway: Gateway, *, model: str = "demo", key: str = "", session: str = "", **fields: Any
    ) -> TransportAnswer:
        request = pb.ModelInferRequest(model_name=model)
        messages = json.dumps([{"role": "user", "content": "Hello"}]).encode()
        request.inputs.add(name="messages", datatype="BYTES", shape=[1]).contents.bytes_contents.append(
            messages
        )
        if stream:
            request.inputs.add(name="stream", datatype="BOOL", shape=[1]).contents.bool_contents.append(True)
        for name, value in fields.items():
            request.parameters[name].string_param = str(value)
        metadata = [(name.lower(), value) for name, value in _headers(key, session).items()]
        async with bare_client(gateway) as client:
            try:
                if not stream:
                    answer = await client.infer(request, metadata=metadata, timeout=PATIENCE_S)
                    return _inferred([answer])
                # a call that ends while a client writes to it loses its status, unless the call itself writes
                call = client.stream(_only(request), metadata=metadata, timeout=PATIENCE_S)
                responses = [response async for response in call]
            except grpc.aio.AioRpcError as error:
                if stream and error.code() is grpc.StatusCode.INTERNAL and not error.trailing_metadata():
                    # it ended before its request was written all the same: grpc's client lost the status
                    again = await ask(gateway, model=model, key=key, session=session, **fields)
                    return replace(again, asked=again.asked + 1)
                found = dict(error.trailing_metadata() or ())
                return TransportAnswer(code=str(found["x-ryz-code"]), message=str(error.details()))
        wrong = next((one for one in responses if one.error_message), None)
        if wrong is not None:
            code = wrong.infer_response.parameters["error_code"].string_param
            return TransportAnswer(code=code, message=wrong.error_message)
        return _inferred([response.infer_response for response in responses])

    return ask


async def _only(request: pb.ModelInferRequest) -> AsyncIterator[pb.ModelInferRequest]:
    yield request


def _inferred(answers: list[pb.ModelInferResponse]) -> TransportAnswer:
    text = ""
    for answer in answers:
        position = [output.name for output in answer.outputs].index("text_output")
        text += answer.raw_output_contents[position][4:].decode()  # after the length
    return TransportAnswer(text=text, session_id=answers[-1].parameters["session_id"].string_param)


async def _of_bus(
    gateway: Gateway, *, model: str = "demo", key: str = "", session: str = "", **fields: Any
) -> TransportAnswer:
    bus = MemoryBus(gateway.broker)
    waiting: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    async def take(message: Message) -> None:
        waiting.set_result(message)

    try:
        reply = bus.new_inbox()
        await bus.subscribe(reply, take)
        data = json.dumps(_body(model, False, fields)).encode()
        await bus.publish(subjects.complete(model), data, reply=reply, headers=_headers(key, session))
        answer = await asyncio.wait_for(waiting, PATIENCE_S)
    finally:
        await bus.close()
    body = json.loads(answer.data)
    if answer.headers["Ryz-Status"] != "200":
        return _failed(body["error"])
    return TransportAnswer(
        text=body["choices"][0]["message"]["content"], session_id=answer.headers.get("X-Session-Id", "")
    )


TRANSPORTS: dict[str, Ask] = {
    "http": _of_http(False),
    "http-stream": _of_http(True),
    "websocket": _of_websocket(False),
    "websocket-stream": _of_websocket(True),
    "grpc": _of_grpc(False),
    "grpc-stream": _of_grpc(True),
    "bus": _of_bus,
}
