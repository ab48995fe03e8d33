"""The answers to requests that cannot be read, and the bounded cost of finding their senders."""

import time

import msgpack

from services.router.incoming import Sender, sender
from shared.bus import Message

PAYLOAD = 2**20
MOST_S = 0.5  # measured: 0.0001; without a bound on announced lengths: 1.3


def test_what_can_be_read_of_a_message_tells_whom_to_answer() -> None:
    data = msgpack.packb({"request_id": "r-1", "attempt": 2, "reply_to": "_INBOX.a.f", "model": 7})
    found = sender(Message("ryz.v1.generate.demo", data, reply="_INBOX.a.r"))
    assert (found.request_id, found.attempt, found.reply_to) == ("r-1", 2, "_INBOX.a.f")


def test_a_message_that_cannot_be_read_is_answered_on_its_reply_subject() -> None:
    found = sender(Message("ryz.v1.generate.demo", b"\xc1", reply="_INBOX.a.r-1"))
    assert (found.request_id, found.attempt, found.reply_to) == ("r-1", 0, "_INBOX.a.r-1")


def test_lengths_that_are_not_there_cost_nothing() -> None:
    data = (b"\xdd\x00\x0f\xff\x00" * 900).ljust(PAYLOAD, b"\x90")
    began = time.process_time()
    assert sender(Message("ryz.v1.generate.demo", data, reply="_INBOX.a.r-1")).request_id == "r-1"
    assert time.process_time() - began < MOST_S


def test_a_long_message_of_one_who_asks_too_often_is_not_read() -> None:
    data = msgpack.packb({"request_id": "r", "attempt": 3, "prompt": "x" * 5000})
    message = Message("ryz.v1.tenant.t.u.generate.demo", data, reply="_INBOX.u.r-1")
    assert sender(message, 4096) == Sender("r-1", 0, "_INBOX.u.r-1")
    assert sender(message, 8192) == Sender("r", 3, "_INBOX.u.r-1")
    elsewhere = Message("ryz.v1.tenant.t.u.generate.demo", data, reply="_INBOX.other.r-1")
    assert sender(elsewhere).reply_to == ""
