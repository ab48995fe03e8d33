"""Every invalid message is refused with an `InvalidRequest` that names the field."""

import contextlib
import gc
import struct
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.codec import (
    decode,
    decode_reply,
    encode,
    encode_batch,
    pack_tokens,
    unpack_tokens,
)
from shared.errors import FAMILY, TABLE, Internal, InvalidRequest, SessionNotFound, from_code
from shared.messages import (
    Accepted,
    Cancel,
    Done,
    ErrorReply,
    Failed,
    FrameBatch,
    GenerateRequest,
    Sampling,
    SessionFound,
    Tokens,
    Wire,
)
from tests.contract.golden_messages import EXAMPLES

KINDS = [type(one) for one in EXAMPLES]
REQUEST: dict[str, Any] = {"request_id": "r1", "model": "demo", "prompt": "hi"}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"request_id": None}, "request_id"),
        ({"request_id": "a b"}, "request_id"),
        ({"request_id": "x" * 65}, "request_id"),
        ({"request_id": "new\nline"}, "request_id"),
        ({"model": 7}, "model"),
        ({"model": ""}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        ({"prompt": b"bytes"}, "prompt"),
        ({"prompt_token_ids": "text"}, "prompt_token_ids"),
        ({"sampling": {"temperature": -0.1}}, "sampling.temperature"),
        ({"sampling": {"temperature": float("nan")}}, "sampling.temperature"),
        ({"sampling": {"top_p": float("inf")}}, "sampling.top_p"),
        ({"sampling": {"top_p": 0}}, "sampling.top_p"),
        ({"sampling": {"repetition_penalty": float("nan")}}, "sampling.repetition_penalty"),
        ({"sampling": {"logit_bias": {5: float("nan")}}}, "sampling.logit_bias"),
        ({"sampling": {"logit_bias": {-5: 1.0}}}, "sampling.logit_bias"),
        ({"sampling": {"logit_bias": {"5": 1.0}}}, "sampling.logit_bias"),
        ({"sampling": {"n": 0}}, "sampling.n"),
        ({"sampling": {"n": 1.5}}, "sampling.n"),
        ({"sampling": {"n": True}}, "sampling.n"),
        ({"sampling": {"seed": -1}}, "sampling.seed"),
        ({"sampling": {"seed": 2**63}}, "sampling.seed"),
        ({"sampling": {"stop": [""]}}, "sampling.stop[0]"),
        ({"sampling": {"stop": ["x"] * 17}}, "sampling.stop"),
        ({"sampling": {"max_tokens": "many"}}, "sampling.max_tokens"),
        ({"session": {"session_id": "with space"}}, "session.session_id"),
        ({"session": {}}, "session.session_id"),
        ({"tenant": "a.b"}, "tenant"),
        ({"priority": 11}, "priority"),
        ({"delivery": "never"}, "delivery"),
        ({"attempt": -1}, "attempt"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], param: str) -> None:
    data = msgpack.packb({**REQUEST, **change}, use_bin_type=True)
    with pytest.raises(InvalidRequest) as caught:
        decode(data, GenerateRequest)
    assert str(caught.value.data.get("param", "")).startswith(param)
    assert param.rsplit(".", maxsplit=1)[-1].split("[", maxsplit=1)[0] in caught.value.message


GARBAGE = [
    b"",
    b"\xc1",
    b"\x80tail",
    b"\xdf\xff\xff\xff\xff",  # announces a map of 2**32 - 1 entries
    b"\xdd\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\x81\x91\x01\x02",  # a list as a key
    b"\x93\x01\x02\x03",
    b"\xc0",
    b'{"request_id": "r1"}',
    b"\xd4\x05\x01",  # an extension type
    b"\xc7\x0c\xff" + bytes(12),  # a timestamp
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_garbage_is_an_invalid_request(kind: type[Wire]) -> None:
    accepted = []
    for data in GARBAGE:
        with contextlib.suppress(InvalidRequest):
            decode(data, kind)
            accepted.append(data)
    assert accepted == []


@pytest.mark.parametrize("levels", [400, 600, 1000, 1024, 5000, 200_000])
@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1a"], ids=["lists", "maps"])
def test_deep_nesting_is_an_invalid_request(levels: int, opening: bytes) -> None:
    deep = opening * levels + b"\xc0"
    with pytest.raises(InvalidRequest):
        decode(deep, GenerateRequest)
    failed = msgpack.packb({"type": "failed", "request_id": "r", "code": "c", "message": "m"})
    inside = bytes([failed[0] + 1]) + failed[1:] + b"\xa4data\x81\xa1x" + deep
    with contextlib.suppress(InvalidRequest):  # valid if its depth is within the limit
        encode(decode(inside, Failed))


def test_an_unknown_field_is_not_looked_at() -> None:
    message = encode(Cancel(request_id="r1"))
    for unknown in (b"\xa1\xff\x01", b"\xa1x\xd4\x05\x01", b"\xa1x\xa1\xff"):
        more = bytes([message[0] + 1]) + message[1:] + unknown
        assert decode(more, Cancel) == Cancel(request_id="r1")


def test_an_extension_is_no_value_of_a_field_that_takes_anything() -> None:
    failed = msgpack.packb({"type": "failed", "request_id": "r", "code": "c", "message": "m"})
    inside = bytes([failed[0] + 1]) + failed[1:] + b"\xa4data\x81\xa1x" + b"\xd4\x05\x01"
    with pytest.raises(InvalidRequest, match="an extension of type 5"):
        decode(inside, Failed)


@given(st.binary(max_size=200), st.sampled_from(KINDS))
@example(b"\x81\xa4type\xa6failed", FrameBatch)
def test_random_bytes_raise_nothing_else(data: bytes, kind: type[Wire]) -> None:
    with contextlib.suppress(InvalidRequest):
        decode(data, kind)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.sampled_from(EXAMPLES), st.data())
def test_one_wrong_value_anywhere_raises_nothing_else(message: Wire, data: st.DataObject) -> None:
    raw = msgpack.unpackb(encode(message), strict_map_key=False)
    if not raw:
        return
    raw[data.draw(st.sampled_from(sorted(raw)))] = data.draw(values)
    with contextlib.suppress(InvalidRequest):
        encode(decode(msgpack.packb(raw), type(message)))


FRAMES = [one for one in EXAMPLES if isinstance(one, Accepted | Tokens | Done | Failed)]


@pytest.mark.parametrize("group", ["", "g0", "g" * 64])
@pytest.mark.parametrize("instance_id", ["", "host-7"])
@pytest.mark.parametrize("count", [0, 1, len(FRAMES), 20, 70_000])
def test_a_batch_of_encoded_frames_is_that_of_the_frames(count: int, group: str, instance_id: str) -> None:
    frames = [FRAMES[number % len(FRAMES)] for number in range(count)]
    data = encode_batch([encode(frame) for frame in frames], group, instance_id)
    assert data == encode(FrameBatch(frames=frames, group=group, instance_id=instance_id))


def test_messages_are_nothing_to_the_collector_of_garbage() -> None:
    assert not [type(one) for one in EXAMPLES if gc.is_tracked(one)]


@given(st.binary(max_size=100))
def test_random_answers_raise_nothing_but_our_errors(data: bytes) -> None:
    with pytest.raises(Internal, match="an answer cannot be read"):
        decode_reply(data, SessionFound)


def test_an_error_reply_becomes_the_error() -> None:
    data = encode(
        ErrorReply(error="session_not_found", message="no session s1", data={"param": "session_id"})
    )
    with pytest.raises(SessionNotFound, match="no session s1") as caught:
        decode_reply(data, SessionFound)
    assert caught.value.data == {"param": "session_id"}
    with pytest.raises(Internal):
        decode_reply(encode(ErrorReply(error="of_the_future", message="?")), SessionFound)


def test_error_data_may_not_collide_with_arguments() -> None:
    error = from_code("overloaded", "full", {"message": "x", "self": 1, "retry_after_s": 2})
    assert error.message == "full"
    assert error.retry_after_s == 2


def test_every_error_code_has_its_place_in_the_table() -> None:
    assert set(FAMILY) == set(TABLE)


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_tokens_come_back(token_ids: list[int]) -> None:
    packed = pack_tokens(token_ids)
    assert packed == b"".join(struct.pack("<I", token_id) for token_id in token_ids)
    assert unpack_tokens(packed) == token_ids


def test_tokens_of_odd_length_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="four bytes"):
        unpack_tokens(b"12345")


def test_a_map_with_integer_keys_is_fine_where_it_belongs() -> None:
    sampling = decode(msgpack.packb({"logit_bias": {5: 1}}), Sampling)
    assert sampling.logit_bias == {5: 1.0}
    with pytest.raises(InvalidRequest):
        decode(msgpack.packb({5: 1}), Cancel)
