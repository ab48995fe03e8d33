"""A gateway with narrow limits: unknown fields are refused, bodies are short, rates are low.

Each exchange has a tenant of its own, whose rate is three requests. They run one after another, since the
places of requests are shared.
"""

import json

from tests.contract.corpus.exchange import table
from tests.contract.corpus.senders.bus import Call
from tests.contract.corpus.senders.grpc_calls import Grpc, Infer
from tests.contract.corpus.senders.http import Http
from tests.contract.corpus.senders.websocket import Socket, Until
from tests.contract.corpus.tables.bodies import (
    CHAT,
    EMBEDDINGS,
    HELLO,
    MESSAGES,
    RESPONSES,
    TEXT,
    TOOLS,
    Steps,
    chat,
    message,
    response,
    text,
)

_T = "tight"
_PAGE = {"Origin": "https://chat.example"}
_END = Until(("answer", "error", "done", "cut", "cancelled"))
_ASK = {"type": "request", "id": "a", "body": chat()}
_INFER = Infer({"messages": json.dumps(HELLO), "max_tokens": 5})
_BATCH = {"input_file_id": "file-none", "endpoint": CHAT, "completion_window": "24h"}
_LONG = [{"role": "user", "content": "x" * 9000}]
EXCHANGES: dict[str, Steps] = {
    "an unknown field": Http(CHAT, chat(frobnicate=1), gateway=_T),
    "an unknown field inside": Http(
        CHAT, chat(messages=[{"role": "user", "content": "x", "frobnicate": 1}]), gateway=_T
    ),
    "a field that is left out elsewhere": Http(CHAT, chat(speed="fast"), gateway=_T),
    "a tool that is left out elsewhere": Http(CHAT, chat(tools=[*TOOLS, {"type": "web_search"}]), gateway=_T),
    "an unknown field of a text": Http(TEXT, text(frobnicate=1), gateway=_T),
    "an unknown field of a response": Http(RESPONSES, response(frobnicate=1), gateway=_T),
    "an unknown field of a message": Http(MESSAGES, message(frobnicate=1), gateway=_T),
    "an unknown field of an embedding": Http(
        EMBEDDINGS, {"model": "demo", "input": "x", "frobnicate": 1}, gateway=_T
    ),
    "an unknown field on a WebSocket": Socket(
        [Until(("ready",)), _ASK | {"body": chat(frobnicate=1)}, _END], gateway=_T
    ),
    "an unknown field on gRPC": Grpc([Infer({**_INFER.inputs, "frobnicate": 1})], gateway=_T),
    "an unknown field on the bus": Call({"messages": HELLO, "frobnicate": 1}, gateway=_T),
    "a long body": Http(CHAT, chat(messages=_LONG), gateway=_T),
    "a long body of a response": Http(RESPONSES, response(input="x" * 9000), gateway=_T),
    "a long body of a message": Http(MESSAGES, message(messages=_LONG), gateway=_T),
    "a long body on a WebSocket": Socket(
        [Until(("ready",)), _ASK | {"body": chat(messages=_LONG)}, _END], gateway=_T
    ),
    "a long body on gRPC": Grpc([Infer({"messages": json.dumps(_LONG)})], gateway=_T),
    "a long body on the bus": Call({"messages": _LONG}, gateway=_T),
    "too many prompts": Http(TEXT, text(prompt=["x"] * 4), gateway=_T),
    "too many inputs": Http(EMBEDDINGS, {"model": "demo", "input": ["x"] * 4}, gateway=_T),
    "too many tokens of an answer": Http(CHAT, chat(n=2, max_tokens=1000), gateway=_T),
    "too many places": Http(TEXT, text(prompt=["x"] * 3), gateway=_T),
    "a rate of tokens": [Http(CHAT, chat(model="costly"), gateway=_T), Http(CHAT, chat(), gateway=_T)],
    "a rate of tokens on gRPC": [
        Grpc([Infer(_INFER.inputs, model="costly")], gateway=_T),
        Grpc([_INFER], gateway=_T),
    ],
    "a rate of tokens on the bus": [
        Call({"messages": HELLO}, model="costly", gateway=_T),
        Call({"messages": HELLO}, gateway=_T),
    ],
    "a rate": [Http(CHAT, chat(), gateway=_T)] * 4,
    "a rate of texts, streamed": [Http(TEXT, text(stream=True), gateway=_T)] * 4,
    "a rate of messages": [Http(MESSAGES, message(), gateway=_T)] * 4,
    "a rate of responses": [Http(RESPONSES, response(store=False), gateway=_T)] * 4,
    "a rate on gRPC": [Grpc([_INFER], gateway=_T)] * 4,
    "a rate on a stream of gRPC": Grpc([_INFER] * 4, method="ModelStreamInfer", gateway=_T),
    "a rate on the bus": [Call({"messages": HELLO, "max_tokens": 5}, gateway=_T)] * 4,
    "a rate on a WebSocket": Socket(
        [Until(("ready",)), *(act for name in "abcd" for act in (_ASK | {"id": name}, _END))], gateway=_T
    ),
    "requests of a connection": Socket(
        [
            Until(("ready",)),
            *({"type": "request", "id": name, "body": chat(model="stuck")} for name in "abc"),
            Until(("error",)),
            {"type": "cancel", "id": "a"},
            Until(("cancelled",)),
            {"type": "cancel", "id": "b"},
            Until(("cancelled",)),
        ],
        gateway=_T,
    ),
    "a page that may": Http(CHAT, chat(), headers=_PAGE, gateway=_T),
    "a page that may, streamed": Http(CHAT, chat(stream=True), headers=_PAGE, gateway=_T),
    "a page that asks before": Http(
        CHAT, method="OPTIONS", key="", headers=_PAGE | {"Access-Control-Request-Method": "POST"}, gateway=_T
    ),
    "a page that may not": Http(CHAT, chat(), headers={"Origin": "https://evil.example"}, gateway=_T),
    "sessions without their service": Http(
        "/v1/sessions/none", headers={"X-Request-Timeout": "1"}, gateway=_T
    ),
    "batches without JetStream": [
        Http("/v1/batches", gateway=_T),
        Http("/v1/batches/batch_none", gateway=_T),
        Http("/v1/batches", _BATCH, gateway=_T),
    ],
}

TABLE = table(_T, EXCHANGES, own_tenants=True)
