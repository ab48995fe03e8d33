"""What holds over every transport, and where a transport differs today.

A fact is a few requests of one client and what their answers have to say. A known difference names what a
transport does instead, and why; a test fails as soon as that is no longer so.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.contract.corpus.tables.bodies import LIMIT_S
from tests.contract.corpus.transports import Ask, Outcome

Observe = Callable[[Sequence[Outcome]], Any]


@dataclass(frozen=True)
class Fact:
    """One fact.

    Attributes:
        asks: The requests, one after another.
        observed: What is looked at.
        expected: What it has to be.
    """

    asks: tuple[Ask, ...]
    observed: Observe
    expected: Any


def _codes(outcomes: Sequence[Outcome]) -> list[str]:
    return [one.code for one in outcomes]


def _code(outcomes: Sequence[Outcome]) -> str:
    return outcomes[-1].code


def _turns(outcomes: Sequence[Outcome]) -> list[int]:
    return [one.turns for one in outcomes]


def _refused(code: str, *asks: Ask) -> Fact:
    """The last request is refused; those before are answered."""
    return Fact(asks, _codes, [*[""] * (len(asks) - 1), code])


_TIGHT = Ask(gateway="tight")
_COSTLY = Ask({"model": "costly"}, gateway="tight")
_KEYED = {"idempotency-key": "once"}
_NEW, _FIRST = {"if-none-match": "*"}, {"if-match": '"1"'}
FACTS: dict[str, Fact] = {
    "the answer": Fact((Ask(),), lambda outcomes: outcomes[0].text, " fox jumps"),
    "no key": _refused("missing_api_key", Ask(key="")),
    "a wrong key": _refused("invalid_api_key", Ask(key="key-of-nobody")),
    "the key names the tenant": _refused(
        "session_not_found",
        Ask(session="mine"),
        Ask(session="mine", headers={"x-session-must-exist": "true"}, tenant="b"),
    ),
    "a rate of requests": Fact((_TIGHT,) * 4, _codes, ["", "", "", "rate_limited"]),
    "a rate says when": Fact((_TIGHT,) * 4, lambda outcomes: outcomes[-1].says_when, True),
    "a rate of tokens": _refused("rate_limited", _COSTLY, _TIGHT),
    "an answer that may be too long": _refused(
        "invalid_request", Ask({"n": 2, "max_tokens": 1000}, gateway="tight")
    ),
    "a body that is too large": _refused("request_too_large", Ask(content="x" * 9000, gateway="tight")),
    "an unknown field is told": Fact(
        (Ask({"frobnicate": 1}),), lambda outcomes: "frobnicate" in outcomes[0].ignored, True
    ),
    "a strict gateway refuses it": _refused("invalid_request", Ask({"frobnicate": 1}, gateway="tight")),
    "a wrong type": _refused("invalid_request", Ask({"temperature": "hot"})),
    "a misspelt field": _refused("invalid_request", Ask({"temperatur": 1})),
    "a wrong choice of a tool": _refused("invalid_request", Ask({"tool_choice": "required"})),
    "a broken schema": _refused("invalid_request", Ask({"guided_json": {"type": "strang"}})),
    "an unknown model": _refused("model_not_found", Ask({"model": "nobody"})),
    "another name of the model": Fact(
        (Ask({"model": "gpt-5"}),), lambda outcomes: outcomes[0].text, " fox jumps"
    ),
    "too many tokens": _refused("context_length_exceeded", Ask(content="word " * 4000)),
    "a late refusal": _refused("context_length_exceeded", Ask({"model": "refuses-late"})),
    "a full group": Fact(
        (Ask({"model": "full"}),),
        lambda outcomes: (outcomes[0].code, outcomes[0].says_when),
        ("overloaded", True),
    ),
    "a poisoned request": _refused("poison", Ask({"model": "poisoned"})),
    "a fault in the middle": _refused("internal", Ask({"model": "breaks"})),
    "a time limit": _refused("deadline_exceeded", Ask({"model": "stuck"}, limit_s=LIMIT_S)),
    "a time limit in its header": _refused(
        "deadline_exceeded", Ask({"model": "stuck"}, headers={"x-request-timeout": str(LIMIT_S)})
    ),
    "a wrong time limit": _refused("invalid_request", Ask(headers={"x-request-timeout": "soon"})),
    "a made session": Fact((Ask(),), lambda outcomes: outcomes[0].session_id[:2], "s-"),
    "a session by another client's header": Fact(
        (Ask(headers={"x-dynamo-session-id": "tea"}),), lambda outcomes: outcomes[0].session_id, "tea"
    ),
    "a named session": Fact((Ask(session="tea"),), lambda outcomes: outcomes[0].session_id, "tea"),
    "turns of a session": Fact((Ask(session="rice"),) * 2, _turns, [1, 2]),
    "it must exist": _refused(
        "session_not_found", Ask(session="none", headers={"x-session-must-exist": "true"})
    ),
    "it must not exist": _refused("conflict", *[Ask(session="new", headers=_NEW)] * 2),
    "it must be at a version": _refused(
        "conflict", Ask(session="old"), *[Ask(session="old", headers=_FIRST)] * 2
    ),
    "a condition that cannot be read": _refused(
        "invalid_request", Ask(session="odd", headers={"if-none-match": '"3"'})
    ),
    "a mode of a session": _refused("invalid_request", Ask(session="odd", headers={"x-session-mode": "odd"})),
    "a repeat": Fact(
        (Ask(headers=_KEYED),) * 2,
        lambda outcomes: (
            _codes(outcomes),
            outcomes[0].request_id == outcomes[1].request_id,
            outcomes[1].text,
            [one.replayed for one in outcomes],
        ),
        (["", ""], True, " fox jumps", [False, True]),
    ),
    "a repeat with another body": _refused("conflict", Ask(headers=_KEYED), Ask({"n": 2}, headers=_KEYED)),
    "a wrong key of a repeat": _refused("invalid_request", Ask(headers={"idempotency-key": "k" * 256})),
    "an id of the request": Fact((Ask(request_id="mine"),), lambda outcomes: outcomes[0].request_id, "mine"),
}


@dataclass(frozen=True)
class Difference:
    """What a transport does today instead of what is expected, and why."""

    observed: Any
    why: str


KNOWN: dict[tuple[str, str], Difference] = {
    **{
        ("a body that is too large", name): Difference(
            ["close 1009"], "the WebSocket itself refuses a long message, by closing the connection"
        )
        for name in ("websocket", "websocket-events")
    },
}
