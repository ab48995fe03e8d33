"""`Idempotency-Key`: names, digests, seeds and session ids that are derived from a key."""

import pytest

from services.gateway.answering.intake.new_calls import IdempotentCall, once_of
from services.gateway.formats.chat.call import chat_call
from services.gateway.formats.chat.schema import ChatCompletionRequest
from services.gateway.formats.fields.body_format import CallOrigin
from shared.errors import InvalidRequest
from shared.identity import is_made_session_id

PATH = "/v1/chat/completions"
BODY = ChatCompletionRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "x"}]})


def once(
    key: bytes = b"k", tenant: str = "t", path: str = PATH, raw: bytes = b"{}", **more: str
) -> IdempotentCall:
    headers = {name.replace("_", "-").encode(): value.encode() for name, value in more.items()}
    found = once_of({b"idempotency-key": key, **headers}, tenant, path, raw)
    assert found is not None
    return found


def test_a_key_names_a_call_of_its_tenant() -> None:
    assert once() == once()
    assert once().name != once(b"other").name != once(tenant="other").name
    assert once(b"bc", tenant="a").name != once(b"c", tenant="ab").name
    assert once_of({}, "t", PATH, b"{}") is None


def test_the_digest_is_of_all_that_is_asked_for() -> None:
    plain = once()
    for other in (
        once(raw=b"{ }"),
        once(path="/v1/completions"),
        once(x_session_id="s"),
        once(x_dynamo_session_id="s"),
        once(x_session_mode="replace"),
    ):
        assert (other.name, other.digest != plain.digest) == (plain.name, True)
    assert once(x_request_timeout="5").digest == plain.digest


@pytest.mark.parametrize("key", [b"", b"a b", b"\xc3\xa9", b"x" * 256])
def test_a_wrong_key_is_named(key: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        once(key)
    assert caught.value.data["param"] == "idempotency-key"


def test_two_gateways_make_the_same_call_of_it() -> None:
    calls = [chat_call(BODY, CallOrigin(name, "t", {}, once())) for name in ("r-1", "r-2")]
    first, second = (call.requests[0] for call in calls)
    assert first.sampling.seed == second.sampling.seed != 0
    assert first.session == second.session
    assert first.session is not None
    assert is_made_session_id(first.session.session_id)
    assert first.session.given  # it is looked up
    assert not first.session.must_exist
    assert (first.call_key, first.call_digest) == (once().name, once().digest)
    assert chat_call(BODY, CallOrigin("r", "t", {})).requests[0].call_key == ""
