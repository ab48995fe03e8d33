"""Requests by every API of a stack that says itself how much each of them uses, for the ledger of usage."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import grpc
import httpx
from tritonclient.grpc import service_pb2 as pb
from websockets.asyncio.client import connect

from shared import subjects
from shared.bus import Message
from shared.bus.accounts import inbox_prefix, user_of
from shared.bus.nats import NatsBus
from shared.client import InferenceClient
from shared.messages import ChatMessage, GenerateRequest, Sampling
from shared.subjects import OutsideService
from tests.contract.corpus.senders.grpc_calls import SERVICE, Infer

LIMIT_S = 30.0
CUT_AT, CUT_TOKENS = 3, 60  # events after which a stream is cut, and the tokens that it would have had


class Ask(NamedTuple):
    """One request.

    Attributes:
        text: Its prompt.
        tokens: That its answer has.
        name: Of this try; unique.
    """

    text: str
    tokens: int
    name: str


class Used(NamedTuple):
    """What an answer says of itself.

    Attributes:
        request_id: As the ledger has it, or its beginning.
        prompt: Tokens of the prompt.
        completion: Tokens of the answer; -1: it was cut.
        embedded: Tokens of an embedding.
    """

    request_id: str
    prompt: int
    completion: int
    embedded: int = 0


class NotServed(Exception):
    """The stack was being killed; the request is tried again."""


@dataclass
class Doors:
    """The APIs of a stack, which may be at other addresses after each kill.

    Attributes:
        url: Returns where the gateway is.
        grpc_port: Where it answers by gRPC.
        nats_url: The broker, for a service outside.
        own_nats_url: The broker, for a gateway.
    """

    url: Callable[[], str]
    grpc_port: int
    nats_url: str
    own_nats_url: str

    def all(self) -> Mapping[str, Any]:
        """The doors by name."""
        return {
            "chat": self.chat, "chat streamed": self.chat_streamed, "completions": self.completions,
            "responses": self.responses, "messages": self.messages, "embeddings": self.embeddings,
            "websocket": self.websocket, "grpc": self.grpc, "bus": self.bus, "nats": self.nats,
            "cut": self.cut,
        }  # fmt: skip

    async def chat(self, ask: Ask) -> Used:
        """A chat that is answered as a whole."""
        answer = await self._post("chat/completions", _chat(ask))
        return _openai(answer)

    async def chat_streamed(self, ask: Ask) -> Used:
        """A chat in pieces."""
        body = _chat(ask) | {"stream": True, "stream_options": {"include_usage": True}}
        async with self._streamed(body) as (request_id, events):
            usage: dict[str, Any] = {}
            ended = False
            async for event in events:
                ended = ended or event == "[DONE]"
                if not ended:
                    chunk = json.loads(event)
                    if "error" in chunk:
                        raise NotServed(event)
                    usage = chunk.get("usage") or usage
        if not ended:
            raise NotServed("no end")
        return Used(request_id, usage["prompt_tokens"], usage["completion_tokens"])

    async def cut(self, ask: Ask) -> Used:
        """A stream whose reader leaves."""
        async with self._streamed(_chat(ask._replace(tokens=CUT_TOKENS)) | {"stream": True}) as (
            name,
            events,
        ):
            count = 0
            async for _ in events:
                count += 1
                if count == CUT_AT:
                    return Used(name, 0, -1)
        raise NotServed("it ended before")

    async def completions(self, ask: Ask) -> Used:
        """A text."""
        body = {"model": "demo", "prompt": ask.text, "max_tokens": ask.tokens}
        return _openai(await self._post("completions", body))

    async def responses(self, ask: Ask) -> Used:
        """The Responses API."""
        body = {"model": "demo", "input": ask.text, "max_output_tokens": max(16, ask.tokens), "store": False}
        answer = await self._post("responses", body)
        usage = answer.json()["usage"]
        return Used(answer.headers["x-request-id"], usage["input_tokens"], usage["output_tokens"])

    async def messages(self, ask: Ask) -> Used:
        """Anthropic's API."""
        answer = await self._post("messages", _chat(ask))
        usage = answer.json()["usage"]
        prompt = usage["input_tokens"] + (usage.get("cache_read_input_tokens") or 0)
        prompt += usage.get("cache_creation_input_tokens") or 0
        return Used(answer.headers["request-id"], prompt, usage["output_tokens"])

    async def embeddings(self, ask: Ask) -> Used:
        """An embedding."""
        answer = await self._post("embeddings", {"model": "demo", "input": ask.text})
        tokens = answer.json()["usage"]["prompt_tokens"]
        return Used(answer.headers["x-request-id"], 0, 0, tokens)

    async def websocket(self, ask: Ask) -> Used:
        """A chat on a WebSocket."""
        request = {"type": "request", "id": "a", "path": "/v1/chat/completions", "body": _chat(ask)}
        async with connect(self.url().replace("http", "ws") + "/v1/realtime") as socket:
            await socket.recv()
            await socket.send(json.dumps(request))
            while True:
                message = json.loads(await socket.recv())
                if message["type"] == "answer":
                    break
                if message["type"] == "error":
                    raise NotServed(str(message))
        usage = message["data"]["usage"]
        return Used(message["headers"]["x-request-id"], usage["prompt_tokens"], usage["completion_tokens"])

    async def grpc(self, ask: Ask) -> Used:
        """A text by the Open Inference Protocol."""
        counts = ("num_input_tokens", "num_output_tokens")
        message = Infer({"text_input": ask.text, "max_tokens": ask.tokens}, outputs=counts).message()
        async with grpc.aio.insecure_channel(
            f"127.0.0.1:{self.grpc_port}", options=[("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            call: Any = channel.unary_unary(
                f"/{SERVICE}/ModelInfer",
                lambda one: one.SerializeToString(),
                pb.ModelInferResponse.FromString,
            )
            answer = await call(message, timeout=LIMIT_S)
        found = dict(zip((one.name for one in answer.outputs), map(_number, *_tensors(answer)), strict=True))
        return Used(answer.parameters["request_id"].string_param, *(found[name] for name in counts))

    async def bus(self, ask: Ask) -> Used:
        """A whole answer by one message on the bus."""
        caller = OutsideService("outside", "outside")
        async with _bus(self.nats_url) as bus:
            answer = await bus.request(
                subjects.complete("demo", caller), json.dumps(_chat(ask)).encode(), timeout_s=LIMIT_S
            )
        if answer.headers.get("Ryz-Status") != "200":
            raise NotServed(answer.data.decode())
        usage = json.loads(answer.data)["usage"]
        return Used(_header(answer, "x-request-id"), usage["prompt_tokens"], usage["completion_tokens"])

    async def nats(self, ask: Ask) -> Used:
        """A generation without a gateway."""
        request = GenerateRequest(
            request_id=ask.name,
            model="demo",
            messages=[ChatMessage(role="user", content=ask.text)],
            sampling=Sampling(max_tokens=ask.tokens),
            tenant="outside",
        )
        async with _bus(self.nats_url) as bus:
            client = InferenceClient(bus, caller=OutsideService("outside", "outside"))
            await client.start()
            try:
                usage = (await client.complete(request, timeout_s=LIMIT_S)).usage
            finally:
                await client.close()
        return Used(f"{ask.name}-", usage.prompt_tokens, usage.completion_tokens)

    async def _post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        async with httpx.AsyncClient(timeout=LIMIT_S) as http:
            answer = await http.post(f"{self.url()}/v1/{path}", json=body)
        if answer.status_code != 200:
            raise NotServed(answer.text)
        return answer

    @asynccontextmanager
    async def _streamed(self, body: dict[str, Any]) -> AsyncIterator[tuple[str, AsyncIterator[str]]]:
        path = f"{self.url()}/v1/chat/completions"
        async with (
            httpx.AsyncClient(timeout=LIMIT_S) as http,
            http.stream("POST", path, json=body, headers={"X-Stream-Grace": "0"}) as answer,
        ):
            if answer.status_code != 200:
                raise NotServed((await answer.aread()).decode())

            async def events() -> AsyncIterator[str]:
                async for line in answer.aiter_lines():
                    if line.startswith("data: "):
                        yield line.removeprefix("data: ")

            yield answer.headers["x-request-id"], events()


def _chat(ask: Ask) -> dict[str, Any]:
    return {
        "model": "demo", "messages": [{"role": "user", "content": ask.text}], "max_tokens": ask.tokens,
    }  # fmt: skip


def _openai(answer: httpx.Response) -> Used:
    usage = answer.json()["usage"]
    return Used(answer.headers["x-request-id"], usage["prompt_tokens"], usage["completion_tokens"])


def _tensors(answer: Any) -> tuple[list[Any], list[bytes]]:
    """The outputs, and their raw contents, which may be left out."""
    outputs = list(answer.outputs)
    return outputs, list(answer.raw_output_contents) or [b""] * len(outputs)


def _number(tensor: Any, raw: bytes) -> int:
    return int.from_bytes(raw[:4], "little") if raw else int(tensor.contents.uint_contents[0])


def _header(message: Message, name: str) -> str:
    return next(value for header, value in message.headers.items() if header.lower() == name)


@asynccontextmanager
async def _bus(url: str) -> AsyncIterator[NatsBus]:
    bus = await NatsBus.connect(url, name="usage", inbox=inbox_prefix(user_of(url)), connect_wait_s=LIMIT_S)
    try:
        yield bus
    finally:
        await bus.close()


async def try_until_served(door: Any, ask: Ask, failures: list[str], *, tries: int = 60) -> Used:
    """Asks again, as another request, until there is an answer."""
    for number in range(tries):
        try:
            async with asyncio.timeout(2 * LIMIT_S):
                found: Used = await door(ask._replace(name=f"{ask.name}-{number}"))
                return found
        except Exception as error:  # whatever a client says of a service that was killed
            failures.append(f"{ask.name}: {error!r}"[:300])
            await asyncio.sleep(0.3)
    raise AssertionError(failures[-5:])
