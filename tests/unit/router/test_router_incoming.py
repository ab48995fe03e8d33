"""Reading requests: refusals, their texts, and their receivers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.incoming import read, read_timeout_ms, sender
from shared import subjects
from shared.bus import Message
from shared.codec import decode, encode
from shared.errors import InvalidRequest
from shared.identity import new_session_id, routing_key
from shared.messages import ChatMessage, GenerateRequest, SessionRef

INBOX = "_INBOX.abc"


def request(**more: object) -> GenerateRequest:
    fields: dict[str, object] = {"request_id": "r-1", "model": "m", "prompt": "hello"}
    return GenerateRequest(**{**fields, **more})  # type: ignore[arg-type]


def message(data: bytes, reply: str = f"{INBOX}.r-9", **headers: str) -> Message:
    return Message(subjects.generate("m"), data, reply, headers)


def test_a_request_is_read() -> None:
    data = encode(request(reply_to=f"{INBOX}.f", attempt=2, session=SessionRef(session_id="s-1")))
    incoming = read(
        Message("x", data, f"{INBOX}.r-1", {"traceparent": "00-a", "Ryz-Timeout-Ms": "1500"}), 10.0
    )
    assert (incoming.data, incoming.request_id, incoming.attempt) == (data, "r-1", 2)
    assert (incoming.reply_to, incoming.session_id) == (f"{INBOX}.f", "s-1")
    assert (incoming.deadline, incoming.headers) == (11.5, {"traceparent": "00-a"})
    assert (incoming.facts.model, incoming.facts.routing_key) == ("m", "s-1")


def test_a_gateway_names_for_whom_a_request_counts_and_a_caller_outside_does_not() -> None:
    here = SessionRef(session_id="s-1")
    for asked in (request(party="address 192.0.2.1"), request(party="address 192.0.2.1", session=here)):
        assert read(message(encode(asked)), 0.0).party == "address 192.0.2.1"
    assert read(message(encode(request(tenant="acme"))), 0.0).party == "acme"
    user = subjects.OutsideService("acme", "billing")
    assert read(message(encode(request(weight=2.5))), 0.0).weight == 2.5
    assert read(message(encode(request(weight=2.5, session=here))), 0.0).weight == 2.5
    outside = encode(request(party="address 192.0.2.1", weight=100.0, reply_to="_INBOX.billing.f"))
    incoming = read(Message(subjects.generate("m", user), outside, "_INBOX.billing.r-1", {}), 0.0)
    assert (incoming.party, incoming.weight) == ("acme", 1.0)
    sent = decode(incoming.data, GenerateRequest)
    assert (sent.party, sent.weight) == ("", 1.0)


def test_a_made_session_is_not_looked_up_and_shares_its_roots_key() -> None:
    plain = request(prompt=None, messages=[ChatMessage(role="user", content="hi")])
    root = routing_key(plain)
    made = SessionRef(session_id=new_session_id(root), given=False)
    incoming = read(message(encode(request(session=made))), 0.0)
    assert (incoming.session_id, incoming.facts.routing_key) == ("", root)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"request_id": "r-1\n"}, "request_id"),
        ({"prompt": None}, "messages"),
        ({"prompt_token_ids": b"\0\0\0\0"}, "prompt_token_ids"),
        ({"reply_to": "a b"}, "reply_to"),
        ({"reply_to": "a.*"}, "reply_to"),
        ({"reply_to": subjects.CANCEL_ALL}, "reply_to"),
    ],
)
def test_what_no_leader_could_use_is_refused_by_field(fields: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(message(encode(request(**fields))), 0.0)
    assert caught.value.data["param"] == param
    assert param in caught.value.message


def test_a_request_that_no_caller_waits_for_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="reply_to"):
        read(message(encode(request()), reply=""), 0.0)


@pytest.mark.parametrize("text", ["", "x", "1.5", "nan", "inf", "9" * 30])
def test_a_time_limit_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match=subjects.HEADER_TIMEOUT):
        read_timeout_ms({subjects.HEADER_TIMEOUT: text})


def test_no_time_limit_is_fine() -> None:
    assert read_timeout_ms({}) is None
    assert read_timeout_ms({subjects.HEADER_TIMEOUT: "-5"}) == -5


def test_the_sender_of_a_wrong_message_is_read_from_it() -> None:
    data = encode(request(reply_to=f"{INBOX}.f", attempt=3, prompt=None))
    assert sender(message(data)) == sender(message(data, reply=""))
    found = sender(message(data))
    assert (found.request_id, found.attempt, found.reply_to) == ("r-1", 3, f"{INBOX}.f")


@pytest.mark.parametrize(
    ("reply", "request_id"), [(f"{INBOX}.r-9", "r-9"), (f"{INBOX}.bad=id", "unknown"), ("", "unknown")]
)
def test_the_sender_of_broken_bytes_is_read_from_the_reply_subject(reply: str, request_id: str) -> None:
    found = sender(message(b"\xc1", reply=reply))
    assert (found.request_id, found.attempt, found.reply_to) == (request_id, 0, reply)


def test_answers_never_go_to_our_own_subjects() -> None:
    assert sender(message(b"\xc1", reply=subjects.generate("m"))).reply_to == ""


@given(st.binary(max_size=200), st.text(max_size=20))
def test_any_bytes_are_a_clear_refusal(data: bytes, reply: str) -> None:
    broken = message(data, reply=reply)
    with pytest.raises(InvalidRequest):
        read(broken, 0.0)
    assert sender(broken).request_id
