"""Sessions: turns and their conditions, repeats, and the routes of sessions as objects."""

from typing import Any

from tests.contract.corpus.exchange import Later, table
from tests.contract.corpus.senders.http import Http
from tests.contract.corpus.tables.bodies import CHAT, IDS, JSON, TEXT, USAGE, chat, text

PATH = "/v1/sessions"


def turn(session: str, content: str = "Hello", headers: dict[str, str] | None = None, **fields: Any) -> Http:
    """A turn of a session."""
    body = chat(messages=[{"role": "user", "content": content}], max_tokens=3, **fields)
    return Http(CHAT, body, headers={"X-Session-Id": session, **(headers or {})})


def made(step: int = 0, **fields: Any) -> Later:
    """A turn of the session that the gateway made for a step."""
    return lambda heard: turn(heard[step].headers["x-session-id"], "And then?", **fields)


def keyed(key: str, body: JSON, path: str = CHAT, **headers: str) -> Http:
    """A call that may be made again."""
    return Http(path, body, headers={"Idempotency-Key": key, **headers})


_FILE: JSON = {"format": "ryzanstein.session", "format_version": 1}

TURNS = table(
    "turns",
    {
        "two turns": [turn("a"), turn("a", "And then?"), Http(f"{PATH}/a?messages=true")],
        "two turns, streamed": [turn("b", stream=True), turn("b", "And then?", **USAGE)],
        "a made session": [Http(CHAT, chat(max_tokens=3)), made(), made(stream=True)],
        "in the body": [Http(CHAT, chat(session_id="c")), Http(CHAT, chat(session_id="c", stream=True))],
        "by the other headers": [
            Http(CHAT, chat(), headers={"X-Dynamo-Session-ID": "d"}),
            Http(CHAT, chat(), headers={"x-smg-routing-key": "d"}),
        ],
        "a header before the body": Http(CHAT, chat(session_id="e"), headers={"X-Session-Id": "f"}),
        "letters of its name": turn("Grüße-日本"),
        "a wrong name": turn("two words"),
        "append": [turn("g"), turn("g", headers={"X-Session-Mode": "append"})],
        "replace": [turn("h"), turn("h", headers={"X-Session-Mode": "replace"}), Http(f"{PATH}/h")],
        "a wrong mode": turn("i", headers={"X-Session-Mode": "prepend"}),
        "append to none": Http(CHAT, chat(), headers={"X-Session-Mode": "append"}),
        "it must exist": turn("j", headers={"X-Session-Must-Exist": "true"}),
        "it must exist, streamed": turn("j", headers={"X-Session-Must-Exist": "true"}, stream=True),
        "it must exist, by the body": turn("j", session_must_exist=True),
        "it must exist, a wrong word": turn("j", headers={"X-Session-Must-Exist": "maybe"}),
        "a made name that is gone": turn("s-0123456789abcdef-0123456789abcdef"),
        "a made name that is gone, begun anew": turn(
            "s-0123456789abcdef-0123456789abcdef", headers={"X-Session-Must-Exist": "false"}
        ),
        "a version": [
            turn("k"),
            turn("k", headers={"If-Match": '"1"'}),
            turn("k", headers={"If-Match": '"1"'}),
        ],
        "any version": [
            turn("l", headers={"If-Match": "*"}),
            turn("l"),
            turn("l", headers={"If-Match": "*"}),
        ],
        "a wrong version": turn("l", headers={"If-Match": "latest"}),
        "no session yet": [
            turn("m", headers={"If-None-Match": "*"}),
            turn("m", headers={"If-None-Match": "*"}),
            turn("m", headers={"If-None-Match": "*"}, stream=True),
        ],
        "a condition without a session": Http(CHAT, chat(), headers={"If-Match": "*"}),
        "a condition on a text": Http(TEXT, text(), headers={"If-Match": "*"}),
        "a session of a text": Http(TEXT, text(), headers={"X-Session-Id": "n"}),
        "ids of tokens in a session": Http(
            CHAT, {"model": "demo", "prompt_token_ids": [0, 5], "max_tokens": 3, "session_id": "o"}
        ),
    },
)

REPEATS = table(
    "repeats",
    {
        "the same body": [keyed("k1", chat()), keyed("k1", chat())],
        "the same body, streamed": [keyed("k2", chat(stream=True)), keyed("k2", chat(stream=True))],
        "with event ids": [keyed("k3", chat(**IDS)), keyed("k3", chat(**IDS))],
        "another body": [keyed("k4", chat()), keyed("k4", chat(max_tokens=4))],
        "another body, streamed": [
            keyed("k5", chat(stream=True)),
            keyed("k5", chat(stream=True, max_tokens=4)),
        ],
        "another route": [keyed("k6", chat()), keyed("k6", text(), TEXT)],
        "another session": [
            keyed("k7", chat(), **{"X-Session-Id": "a"}),
            keyed("k7", chat(), **{"X-Session-Id": "b"}),
        ],
        "a turn of a session": [
            keyed("k8", chat(), **{"X-Session-Id": "c"}),
            keyed("k8", chat(), **{"X-Session-Id": "c"}),
            Http(f"{PATH}/c?messages=true"),
        ],
        "a text": [keyed("k9", text(), TEXT), keyed("k9", text(), TEXT)],
        "several prompts": [keyed("k10", text(prompt=["One", "Two"], max_tokens=2), TEXT)] * 2,
        "of a refused call": [keyed("k11", chat(max_tokens=0)), keyed("k11", chat())],
        "calls and reasoning": [keyed("k12", chat(model="thinks-and-calls"))] * 1,
        "a wrong key": keyed("two words", chat()),
        "a key that is too long": keyed("k" * 256, chat()),
        "a key on responses": [
            keyed("k13", {"model": "demo", "input": "Hello", "max_output_tokens": 3}, "/v1/responses")
        ]
        * 2,
        "a key on messages": [
            keyed(
                "k14",
                {"model": "demo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3},
                "/v1/messages",
            )
        ]
        * 2,
    },
    side_by_side=True,
)


def exported(step: int, **changes: Any) -> Later:
    """An import of the file that a step exported."""
    return lambda heard: Http(f"{PATH}/import?session_id=back", heard[step].json | changes)


_NEW = Http(
    PATH, {"session_id": "a", "messages": [{"role": "system", "content": "Be brief."}], "model": "demo"}
)
OBJECTS = table(
    "sessions",
    {
        "created": [_NEW, _NEW, Http(f"{PATH}/a?messages=true")],
        "created without a name": Http(PATH, {"model": "demo"}),
        "created with an unknown field": Http(PATH, {"session_id": "b", "model": "demo", "frobnicate": 1}),
        "created for an unknown model": Http(PATH, {"session_id": "b", "model": "nobody"}),
        "created for no model": Http(PATH, {"session_id": "b"}),
        "created at an unknown group": Http(PATH, {"session_id": "b", "model": "demo", "pinned_group": "g9"}),
        "created at a group": [
            Http(PATH, {"session_id": "c", "model": "demo", "pinned_group": "g0"}),
            turn("c"),
        ],
        "created of a wrong type": Http(PATH, {"session_id": 7}),
        "seen after two turns": [turn("d"), turn("d", "And then?"), Http(f"{PATH}/d")],
        "not there": Http(f"{PATH}/none"),
        "of another tenant": [turn("e"), Http(f"{PATH}/e", key="key-of-chat")],
        "without a key": Http(PATH, key=""),
        "deleted": [
            turn("f"),
            Http(f"{PATH}/f", method="DELETE"),
            Http(f"{PATH}/f"),
            Http(f"{PATH}/f", method="DELETE"),
        ],
        "pinned": [
            turn("g"),
            Http(f"{PATH}/g/pin", {"group": "g0"}),
            turn("g"),
            Http(f"{PATH}/g/pin", method="DELETE"),
            turn("g"),
        ],
        "pinned to an unknown group": [turn("h"), Http(f"{PATH}/h/pin", {"group": "g9"})],
        "pinned, not there": Http(f"{PATH}/none/pin", {"group": "g0"}),
        "moved": [turn("i"), Http(f"{PATH}/i/move", {"group": "g0"})],
        "moved to an unknown group": [turn("j"), Http(f"{PATH}/j/move", {"group": "g9"})],
        "moved of a wrong type": Http(f"{PATH}/j/move", {"group": 3}),
        "exported": [turn("k"), Http(f"{PATH}/k/export")],
        "imported": [
            turn("l"),
            Http(f"{PATH}/l/export"),
            exported(1),
            Http(f"{PATH}/back?messages=true"),
            exported(1),
        ],
        "imported, altered": [turn("m"), Http(f"{PATH}/m/export"), exported(1, turns=7)],
        "imported, of another version": [turn("n"), Http(f"{PATH}/n/export"), exported(1, format_version=9)],
        "imported, of no format": Http(f"{PATH}/import", {"a": 1}),
        "imported, cut": Http(f"{PATH}/import", b'{"format": "ryzanstein.ses'),
        "imported, of another type": Http(f"{PATH}/import", _FILE, headers={"Content-Type": "text/plain"}),
        "a list": Http(f"{PATH}?limit=2"),
        "a wrong limit": Http(f"{PATH}?limit=0"),
        "a wrong cursor": Http(f"{PATH}?cursor=x"),
    },
)
