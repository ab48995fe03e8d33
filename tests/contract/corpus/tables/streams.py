"""Streams that are resumed, left, ended by their clients, and that fail."""

from tests.contract.corpus.exchange import Later, table
from tests.contract.corpus.senders.http import Http
from tests.contract.corpus.tables.bodies import CHAT, IDS, JSON, LIMIT_S, MESSAGES, TEXT, chat, message, text

PATH = "/v1/streams"
_GRACE = {"X-Stream-Grace": "30"}


def after(last: str, **options: object) -> Later:
    """Resumes the stream of the first step after an event; `last` is its id, or empty."""

    def made(heard: list) -> Http:  # type: ignore[type-arg]
        headers = {"Last-Event-ID": last} if last else {}
        return Http(f"{PATH}/{heard[0].headers['x-stream-id']}", headers=headers, **options)  # type: ignore[arg-type]

    return made


def from_query(last: str) -> Later:
    """The same by the query."""
    return lambda heard: Http(f"{PATH}/{heard[0].headers['x-stream-id']}?from={last}")


def by_chunk(last: str) -> Later:
    """The same by the id of a chunk."""
    return lambda heard: Http(
        f"{PATH}/chatcmpl-{heard[0].headers['x-stream-id']}", headers={"Last-Event-ID": last}
    )


def ended(**options: object) -> Later:
    """Ends the stream of the first step."""
    return lambda heard: Http(f"{PATH}/{heard[0].headers['x-stream-id']}", method="DELETE", **options)  # type: ignore[arg-type]


def last_heard() -> Later:
    """Resumes after the last event that came in the step before."""
    return lambda heard: Http(
        f"{PATH}/{heard[0].headers['x-stream-id']}", headers={"Last-Event-ID": heard[-1].event_ids[-1]}
    )


def _slow(**fields: object) -> JSON:
    return chat(model="slow", stream=True, **fields)


_WHOLE = Http(CHAT, chat(**IDS))
TABLE = table(
    "streams",
    {
        "from the beginning": [_WHOLE, after("")],
        "after the first event": [_WHOLE, after("0.0")],
        "after an event in the middle": [_WHOLE, after("2.0"), from_query("2.0"), by_chunk("3.0")],
        "after a whole frame": [_WHOLE, from_query("3")],
        "after its last event": [_WHOLE, last_heard()],
        "twice": [_WHOLE, after("1.0"), after("4.0")],
        "a text": [Http(TEXT, text(**IDS)), after("2.0")],
        "two choices": [Http(CHAT, chat(n=2, **IDS)), after("1.1"), after("1.0")],
        "usage": [
            Http(CHAT, chat(stream=True, stream_options={"include_event_ids": True, "include_usage": True})),
            after("4.0"),
        ],
        "log probabilities": [Http(CHAT, chat(logprobs=True, **IDS)), after("2.0")],
        "a session": [Http(CHAT, chat(**IDS), headers={"X-Session-Id": "a"}), after("3.0")],
        "Anthropic's events": [Http(MESSAGES, message(stream=True), headers=_GRACE), after("2.0")],
        "plain in spite of a grace": Http(
            CHAT, chat(stream=True, stream_options={"include_event_ids": False}), headers=_GRACE
        ),
        "ids by the header alone": Http(CHAT, chat(stream=True), headers={"X-Stream-Grace": "0"}),
        "left and resumed": [
            Http(CHAT, chat(stream=True, max_tokens=40), headers=_GRACE, take=3),
            last_heard(),
        ],
        "left and ended": [
            Http(CHAT, chat(stream=True, max_tokens=40), headers=_GRACE, take=3),
            ended(),
        ],
        "after an event that never came": [_WHOLE, after("99.0")],
        "after a malformed event": [_WHOLE, after("x"), from_query("1.2.3")],
        "no such stream": Http(f"{PATH}/r-000000000000000000000000"),
        "an odd name": Http(f"{PATH}/a%20b"),
        "of another tenant": [_WHOLE, after("", key="key-of-chat")],
        "without a key": [_WHOLE, after("", key="")],
        "a plain stream": [Http(CHAT, chat(stream=True)), after("")],
        "a wrong grace": Http(CHAT, chat(stream=True), headers={"X-Stream-Grace": "long"}),
        "ids without a stream": Http(CHAT, chat(stream_options={"include_event_ids": True})),
        "usage without a stream": Http(CHAT, chat(stream_options={"include_usage": True})),
        "a stream that is left": Http(CHAT, _slow(), take=3),
        "a text that is left": Http(TEXT, text(model="slow", stream=True), take=2),
        "a time limit in the middle": Http(CHAT, chat(model="stuck", stream=True, timeout=LIMIT_S)),
        "a time limit by the header": Http(
            CHAT, chat(model="stuck"), headers={"X-Request-Timeout": str(LIMIT_S)}
        ),
        "a time limit of a text": Http(
            TEXT, text(model="stuck"), headers={"X-Request-Timeout": str(LIMIT_S)}
        ),
        "a wrong time limit": Http(CHAT, chat(), headers={"X-Request-Timeout": "soon"}),
        "a fault in the middle": Http(CHAT, chat(model="breaks", stream=True)),
        "a fault of a whole answer": Http(CHAT, chat(model="breaks")),
        "a fault of a text": Http(TEXT, text(model="breaks", stream=True)),
        "a late refusal": Http(CHAT, chat(model="refuses-late")),
        "a late refusal, streamed": Http(CHAT, chat(model="refuses-late", stream=True)),
        "a full group": Http(CHAT, chat(model="full")),
        "a full group, streamed": Http(CHAT, chat(model="full", stream=True)),
        "a poisoned request": Http(CHAT, chat(model="poisoned")),
    },
    side_by_side=True,
)
