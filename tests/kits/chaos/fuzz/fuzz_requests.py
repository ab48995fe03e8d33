"""Malformed HTTP requests as hypothesis strategies: odd bodies, headers and paths.

`documented` takes those of the documented routes from schemathesis; the other strategies are this module's.
"""

import json
import string
from typing import Any, NamedTuple
from urllib.parse import quote

import requests
import schemathesis
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.core.result import Ok

from tests.kits.chaos.fuzz.fuzz_bodies import GENERATING
from tests.kits.chaos.fuzz.fuzz_shapes import EDGES, HOSTILE_WORDS, edit_somewhere

ANSWER_END = b"\r\n\r\n"
KNOWN_STREAMS = 20
LARGE_BODY = 5 * 2**20


class Request(NamedTuple):
    """One request.

    Attributes:
        method: The HTTP method.
        target: Path and query as they are sent.
        headers: Names and values.
        body: The whole body.
        chunked: Whether the body is sent in chunks.
        cut: Whether the connection ends before the body does.
    """

    method: str
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""
    chunked: bool = False
    cut: bool = False

    def wire(self) -> bytes:
        """The bytes to send."""
        head = [b"%b %b HTTP/1.1" % (self.method.encode(), self.target or b"/")]
        names = {name.lower() for name, _ in self.headers}
        given = list(self.headers)
        if b"host" not in names:
            given.append((b"Host", b"localhost"))
        body = self.body
        if self.chunked:
            given.append((b"Transfer-Encoding", b"chunked"))
            body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:7], body[7:]) if part)
            body += b"0\r\n\r\n"
        elif self.body or self.method in {"POST", "PUT", "PATCH"}:
            given.append((b"Content-Length", str(len(body) + 10 * self.cut).encode()))
        head += [name + b": " + value for name, value in given]
        return b"\r\n".join(head) + ANSWER_END + body


CHAT: dict[str, Any] = {
    "model": "demo", "max_tokens": 4, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "seed": 7,
    "repetition_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.1, "logit_bias": {"7": -1.5},
    "n": 2, "stop": ["\n"], "logprobs": True, "top_logprobs": 2, "user": "u", "session_id": "s1",
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello!"}],
    "stream_options": {"include_usage": True},
}  # fmt: skip
COMPLETION: dict[str, Any] = {
    "model": "demo", "max_tokens": 4, "prompt": ["Hello", "Bye"], "n": 1, "logprobs": 2, "echo": False,
    "best_of": 1,
    "stop": "x", "temperature": 0, "ignore_eos": False, "timeout": 5.0, "priority": 1,
}  # fmt: skip
NEW_SESSION: dict[str, Any] = {
    "session_id": "s1", "model": "demo", "messages": CHAT["messages"], "pinned_group": "g0",
}  # fmt: skip
TO_GROUP: dict[str, Any] = {"group": "g0"}

_ODD_JSON = (
    b"", b"null", b"[]", b"{", b"\xff", b"\xef\xbb\xbf{}", b"{}{}", b'"""', b"[" * 100_000, b'{"a":' * 5000,
    b'{"model": NaN}', b'{"messages": Infinity}', b'{"model": "demo", "model": 7}', b'{"seed": 1e400}',
    b'{"model": "\\ud800", "messages": [{"role": "user", "content": "\\udfff"}]}',
    b'{"seed": ' + b"9" * 5000 + b"}", b" " * LARGE_BODY, '{"model": "demo"}'.encode("utf-16"),
    b'{"model": "demo", "prompt": [[1, 2], [-1]]}',
    b'{"model": "demo", "prompt": [[4294967295, 4294967296]]}',
    b'{"model": "demo", "prompt": "", "n": 16, "max_tokens": 1}',
)  # fmt: skip


def _plain(value: Any) -> Any:
    """The value without what JSON cannot represent."""
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _dump(value: Any, *, ascii_only: bool) -> bytes:
    try:
        return json.dumps(value, default=_plain, ensure_ascii=ascii_only, skipkeys=True).encode(
            "utf-8", "replace"
        )
    except (ValueError, RecursionError):
        return b"{}"


@st.composite
def bodies(draw: st.DrawFn, near: dict[str, Any]) -> bytes:
    """A body with up to four edits, streamed or not, possibly with damaged bytes; or one that is not JSON."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from(_ODD_JSON) | st.binary(max_size=60))
    raw = json.loads(json.dumps(near))
    if draw(st.booleans()):
        raw["stream"] = draw(st.just(True) | st.sampled_from((False, None, 1, "yes")))
        if draw(st.booleans()):
            raw.pop("stream_options", None)
    elif near is CHAT and draw(st.booleans()):
        raw.pop("stream_options")
    for _ in range(draw(st.sampled_from((0, 0, 0, 1, 1, 1, 2, 3, 4)))):
        edit_somewhere(draw, raw)
    data = bytearray(_dump(raw, ascii_only=draw(st.booleans())))
    if draw(st.integers(0, 5)) == 0 and data:
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


_values = (
    st.sampled_from([word.encode("utf-8", "replace")[:2000] for word in HOSTILE_WORDS])
    | st.sampled_from([str(edge).encode() for edge in EDGES])
    | st.sampled_from((b"nan", b"inf", b"1e308", b"1e-9", b"0.001", b"0", b"-1", "٣".encode(), b"\xe9",
    b"s1", b"append",
                       b"replace", b"auto", b"0.0", b"1.0", b"99.0", b"7.-1", b"1.5.2", b"x" * 3000,
                       b"Bearer x", b"Basic",
                       b"gzip", b"text/plain", b"application/json; charset=utf-16", b"100-continue",
                       b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
    | st.text(string.printable, max_size=12).map(str.encode)
    | st.binary(max_size=8)
)  # fmt: skip
HEADER_NAMES = (
    b"X-Session-Id", b"x-dynamo-session-id", b"X-Session-Mode", b"X-Request-Id", b"X-Request-Timeout",
    b"X-Stream-Grace",
    b"Last-Event-ID", b"Authorization", b"Content-Type", b"Content-Encoding", b"traceparent", b"tracestate",
    b"Accept",
    b"Expect", b"Host", b"Cookie", b"X-Forwarded-For", b"Connection", b"X-Odd",
)  # fmt: skip
headers = st.just(()) | st.lists(
    st.tuples(
        st.sampled_from(HEADER_NAMES),
        _values.map(lambda value: value.replace(b"\r", b"").replace(b"\n", b"")),
    ),
    max_size=3,
).map(tuple)
_json_type = ((b"Content-Type", b"application/json"),)


def _posts(path: str, near: dict[str, Any]) -> st.SearchStrategy[Request]:
    return st.builds(
        Request,
        st.just("POST"),
        st.just(path.encode()),
        headers | headers.map(lambda given: given + _json_type),
        bodies(near),
        chunked=st.integers(0, 9).map(lambda n: n == 0),
        cut=st.integers(0, 29).map(lambda n: n == 0),
    )


ids = st.sampled_from(
    ("s1", "s2", "a%2Fpin", "%", "%ff", "%00", ".", "..", "import", "x" * 129, "%F0%9F%98%80", "")
) | st.text(max_size=8).map(lambda text: quote(text, safe=""))
queries = st.lists(
    st.tuples(
        st.sampled_from(("limit", "cursor", "messages", "session_id", "replace", "from", "x")),
        _values.map(quote) | st.sampled_from(("true", "1000", "1001", "0", "5.0", "5", "%ff", "")),
    ),
    max_size=3,
).map(lambda pairs: "&".join(f"{name}={value}" for name, value in pairs))


@st.composite
def session_calls(draw: st.DrawFn) -> Request:
    """Requests to the session routes and to similar paths."""
    one = f"/v1/sessions/{draw(ids)}"
    method, path, near = draw(
        st.sampled_from((
            ("GET", "/v1/sessions", None), ("POST", "/v1/sessions", NEW_SESSION), ("GET", one, None),
            ("DELETE", one, None), ("POST", f"{one}/pin", TO_GROUP), ("DELETE", f"{one}/pin", None),
            ("POST", f"{one}/move", TO_GROUP), ("GET", f"{one}/export", None), ("HEAD", one, None),
            ("POST", "/v1/sessions/import", NEW_SESSION), ("PUT", one, NEW_SESSION), ("POST", one, None),
            ("OPTIONS", "/v1/sessions", None),
        ))
    )  # fmt: skip
    query = draw(queries)
    body = draw(bodies(near)) if near else b""
    return Request(method, f"{path}?{query}".encode("utf-8", "replace"), draw(headers) + _json_type, body)


@st.composite
def stream_calls(draw: st.DrawFn) -> Request:
    """Requests for existing, ended and invented streams. `@3` stands for the third latest stream."""
    name = f"@{draw(st.integers(1, KNOWN_STREAMS))}" if draw(st.booleans()) else draw(ids)
    method = draw(st.sampled_from(("GET", "GET", "GET", "DELETE", "POST")))
    return Request(method, f"/v1/streams/{name}?{draw(queries)}".encode("utf-8", "replace"), draw(headers))


@st.composite
def response_calls(draw: st.DrawFn) -> Request:
    """Requests for stored and invented responses, and for one model."""
    one = f"/v1/responses/{draw(ids)}"
    paths = (one, f"{one}/cancel", f"{one}/input_items", f"/v1/models/{draw(ids)}", "/health")
    method = draw(st.sampled_from(("GET", "GET", "POST", "DELETE", "HEAD")))
    path = f"{draw(st.sampled_from(paths))}?{draw(queries)}"
    return Request(method, path.encode("utf-8", "replace"), draw(headers))


_noise = st.builds(
    Request,
    st.sampled_from(("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "CONNECT", "get",
    "FUZZ")),
    st.sampled_from((b"/", b"//", b"*", b"/v1", b"/v1/", b"/v1/models", b"/v1/models/", b"/v1/models/demo",
    b"/live",
                     b"/ready", b"/metrics", b"/openapi.json", b"/docs", b"/../../etc/passwd", b"/%2e%2e/",
                     b"/\xff", b"/%ff",
                     b"/v1/models/%00", b"/v1/chat/completions/", b"/v1/completions?x=" + b"y" * 5000,
                     b"http://else/v1/models",
                     b"/v1/chat/completions;a=b", b"/v1%2fmodels"))
    | st.text(string.ascii_letters + "/%.?&=#", max_size=20).map(lambda path: b"/" + path.encode()),
    headers,
    st.binary(max_size=20),
)  # fmt: skip


def sound() -> list[Request]:
    """Every body that the strategies edit, as it is, streamed and not: each of them is answered."""
    near = [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)]
    near += [(path, body) for path, bodies in GENERATING.items() for body in bodies]
    return [
        Request("POST", path.encode(), _json_type, json.dumps(_streamed(body, stream=stream)).encode())
        for path, body in near
        for stream in (False, True)
    ]


def _streamed(body: dict[str, Any], *, stream: bool) -> dict[str, Any]:
    if stream:
        return body | {"stream": True}
    return {name: value for name, value in body.items() if name != "stream_options"}


def ours() -> st.SearchStrategy[Request]:
    """All requests that are not from schemathesis."""
    chat, completion = _posts("/v1/chat/completions", CHAT), _posts("/v1/completions", COMPLETION)
    others = [_posts(path, near) for path, bodies in GENERATING.items() for near in bodies]
    older = chat | chat | completion | completion | session_calls() | stream_calls() | _noise
    return older | st.one_of(others) | response_calls()


# a key that is made closes the API to all requests that follow
_CLOSING = {("POST", "/v1/manage/keys"), ("PATCH", "/v1/manage/keys")}


def documented(openapi: dict[str, Any]) -> st.SearchStrategy[Request]:
    """Requests that the API's document allows, and ones that it does not allow."""
    schema = schemathesis.openapi.from_dict(openapi)
    cases = []
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()
        if (operation.method.upper(), operation.path) in _CLOSING:
            continue
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            cases.append(operation.as_strategy(generation_mode=mode))
    return st.one_of(cases).map(_of_case)


def _of_case(case: schemathesis.Case[Any]) -> Request:
    wanted = case.as_transport_kwargs(base_url="http://fuzz")
    known = {"method", "url", "headers", "params", "data", "json", "files", "cookies"}
    made = requests.Request(**{name: value for name, value in wanted.items() if name in known}).prepare()
    body = made.body or b""
    assert isinstance(body, str | bytes)
    own = {"content-length", "transfer-encoding", "host"}
    given = tuple(
        (_raw(name), _raw(value))
        for name, value in made.headers.items()
        if _raw(name).decode("latin-1").lower() not in own
    )
    return Request(made.method or "GET", (made.path_url or "/").encode("utf-8", "replace"), given, _raw(body))


def _raw(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "replace")
