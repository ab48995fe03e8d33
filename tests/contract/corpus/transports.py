"""One request of a chat in the form of each transport, and what its answer says, in one form for all."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.contract.corpus.exchange import Address, Heard
from tests.contract.corpus.senders.bus import Call
from tests.contract.corpus.senders.grpc_calls import Grpc, Infer
from tests.contract.corpus.senders.http import Http
from tests.contract.corpus.senders.websocket import Socket, Until

CHAT = "/v1/chat/completions"
UPGRADED = 101
JSON = dict[str, Any]


@dataclass(frozen=True)
class Ask:
    """A request.

    Attributes:
        fields: Of the body, beside the messages.
        content: The message of the user.
        session: The session that it names; empty: none.
        headers: What HTTP says in headers, such as `If-Match`, in lower case.
        limit_s: The time limit; 0: none is given.
        request_id: The client's id of the request; empty: none.
        tenant: Put behind the name of the test's tenant.
        key: The API key; None: that of the tenant; empty: none.
        gateway: `main` or `tight`.
    """

    fields: JSON = field(default_factory=dict)
    content: str = "Hello"
    session: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    limit_s: float = 0.0
    request_id: str = ""
    tenant: str = "a"
    key: str | None = None
    gateway: str = "main"

    @property
    def body(self) -> JSON:
        """The body of a chat completion, without its model."""
        return {"messages": [{"role": "user", "content": self.content}], "max_tokens": 5} | {
            name: value for name, value in self.fields.items() if name != "model"
        }

    @property
    def model(self) -> str:
        """The model."""
        return str(self.fields.get("model", "demo"))

    @property
    def sent_headers(self) -> dict[str, str]:
        """The headers of HTTP, without the time limit and the id."""
        return self.headers | ({"x-session-id": self.session} if self.session else {})

    @property
    def named(self) -> dict[str, str]:
        """The same with the id."""
        return self.sent_headers | ({"x-request-id": self.request_id} if self.request_id else {})


@dataclass(frozen=True)
class Outcome:
    """What an answer says.

    Attributes:
        code: Of the error; empty: there was none.
        text: Of the answer.
        request_id: That the gateway tells.
        session_id: Likewise.
        turns: Of the session with this turn; 0: it is not told.
        ignored: What was left out.
        says_when: The error says when a retry may succeed.
        replayed: It says that it is the answer of an earlier call.
    """

    code: str = ""
    text: str = ""
    request_id: str = ""
    session_id: str = ""
    turns: int = 0
    ignored: str = ""
    says_when: bool = False
    replayed: bool = False


Transport = Callable[[Ask, Address, str], Awaitable[Outcome]]


def _turns(header: str, body: JSON | None = None) -> int:
    """Of `X-Ryz-Session`, or of the answer's body."""
    found = [part for part in header.split("; ") if part.startswith("turns=")]
    if found:
        return int(found[0].removeprefix("turns="))
    return int(((body or {}).get("session") or {}).get("turns", 0))


def _outcome(headers: dict[str, str], bodies: list[JSON]) -> Outcome:
    """Of headers in lower case, and the body or the data of all events."""
    error: JSON = next((body["error"] for body in bodies if body.get("error")), {})
    choices = [choice for body in bodies for choice in body.get("choices", ())]
    parts = [choice.get("message") or choice.get("delta") or {} for choice in choices]
    return Outcome(
        code=error.get("code") or "",
        text="".join(part.get("content") or "" for part in parts),
        request_id=headers.get("x-request-id", ""),
        session_id=headers.get("x-session-id", ""),
        turns=_turns(headers.get("x-ryz-session", ""), next(iter(bodies), None)),
        ignored=headers.get("x-ryz-ignored", ""),
        says_when="retry-after" in headers,
        replayed=headers.get("idempotent-replayed") == "true",
    )


def _http(*, stream: bool) -> Transport:
    async def send(ask: Ask, address: Address, key: str) -> Outcome:
        headers: dict[str, str | None] = dict(ask.named)
        if ask.limit_s:
            headers["x-request-timeout"] = str(ask.limit_s)
        body = ask.body | {"model": ask.model, "stream": stream}
        heard = await Http(CHAT, body, headers=headers, key=ask.key).send(address, key)
        return _outcome(heard.headers, _bodies(heard))

    return send


def _bodies(heard: Heard) -> list[JSON]:
    text = heard.body.decode()
    if not heard.headers.get("content-type", "").startswith("text/event-stream"):
        return [json.loads(text)]
    return [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]


def _realtime(*, stream: bool) -> Transport:
    async def send(ask: Ask, address: Address, key: str) -> Outcome:
        limit = {"x-request-timeout": str(ask.limit_s)} if ask.limit_s else {}
        body = ask.body | {"model": ask.model, "stream": stream}
        request = {"type": "request", "id": "a", "body": body, "headers": ask.named | limit}
        ready = () if ask.key == "" else (Until(("ready",)),)  # without a key a message has to bring it
        acts = [*ready, request, Until(("answer", "error", "done", "cut"))]
        heard = await Socket(acts, key=ask.key).send(address, key)
        messages = [json.loads(line) for line in heard.body.decode().splitlines()]
        if heard.status != UPGRADED:
            return _outcome(heard.headers, [json.loads(line) for line in heard.lines if line.startswith("{")])
        if heard.lines[-1].startswith("< close"):
            return Outcome(code=" ".join(heard.lines[-1].split()[1:3]))
        headers: dict[str, str] = {}
        for message in messages:
            headers |= message.get("headers", {})
        return _outcome(headers, [one["data"] for one in messages if isinstance(one.get("data"), dict)])

    return send


def _grpc(*, streams: bool, pieces: bool = False) -> Transport:
    async def send(ask: Ask, address: Address, key: str) -> Outcome:
        inputs: JSON = {"messages": json.dumps(ask.body["messages"])}
        rest = {name: value for name, value in ask.body.items() if name != "messages"}
        inputs["sampling_parameters"] = json.dumps(rest)
        if pieces:
            inputs["stream"] = True
        limit = {"timeout": int(ask.limit_s * 1e6)} if ask.limit_s else {}
        call = Grpc(
            [Infer(inputs, ask.model, limit, request_id=ask.request_id)],
            method="ModelStreamInfer" if streams else "ModelInfer",
            metadata=tuple(ask.sent_headers.items()),
            key=ask.key,
        )
        heard = await call.send(address, key)
        marked = [
            line.removeprefix("< trailing ").partition(": ") for line in heard.lines if "< trailing" in line
        ]
        trailing = {name: value for name, _, value in marked}
        responses = [json.loads(line) for line in heard.body.decode().splitlines()]
        inferred = [one.get("infer_response", one) for one in responses]
        parameters: JSON = {}
        for one in inferred:
            parameters |= {
                name: next(iter(value.values())) for name, value in one.get("parameters", {}).items()
            }
        return Outcome(
            code=trailing.get("x-ryz-code", "") or parameters.get("error_code", ""),
            text="".join(_text(one) for one in inferred),
            request_id=trailing.get("x-request-id", "") or parameters.get("request_id", ""),
            session_id=trailing.get("x-session-id", "") or parameters.get("session_id", ""),
            turns=_turns(trailing.get("x-ryz-session", "") or parameters.get("session", "")),
            ignored=trailing.get("x-ryz-ignored", "") or parameters.get("ignored", ""),
            says_when="retry-after" in trailing or "retry_after_s" in parameters,
            replayed=trailing.get("idempotent-replayed") == "true"
            or parameters.get("idempotent_replayed") == "true",
        )

    return send


def _text(response: JSON) -> str:
    names = [output["name"] for output in response.get("outputs", ())]
    raw = response.get("raw_output_contents", ())
    return str(raw[names.index("text_output")][4:]) if "text_output" in names else ""


async def _bus(ask: Ask, address: Address, key: str) -> Outcome:
    limit = {"Ryz-Timeout-Ms": str(int(ask.limit_s * 1000))} if ask.limit_s else {}
    heard = await Call(ask.body, model=ask.model, headers=ask.named | limit, key=ask.key).send(address, key)
    return _outcome(heard.headers, [heard.json])


TRANSPORTS: dict[str, Transport] = {
    "http": _http(stream=False),
    "http-events": _http(stream=True),
    "websocket": _realtime(stream=False),
    "websocket-events": _realtime(stream=True),
    "grpc": _grpc(streams=False),
    "grpc-stream": _grpc(streams=True),
    "grpc-pieces": _grpc(streams=True, pieces=True),
    "bus": _bus,
}
