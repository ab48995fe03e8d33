"""Made session ids do not reveal the first text, and all gateways make the same ones."""

import pytest

from services.gateway.formats.chat.call import chat_call
from services.gateway.formats.chat.schema import ChatCompletionRequest
from services.gateway.formats.fields.body_format import CallOrigin
from services.gateway.resources.sessions.root_key import root_key
from shared.identity import request_root, root_hash, routing_key, session_key
from shared.messages import ChatMessage, GenerateRequest, SessionRef

SECRET = "correct horse battery"
PASSWORD_URL = "nats://gateway:p4ssw0rd%21@broker:4222,nats://gateway:p4ssw0rd%21@other:4222"
BODY = ChatCompletionRequest.model_validate(
    {"model": "m", "messages": [{"role": "user", "content": "Is my diagnosis X?"}]}
)


def made(key: bytes, tenant: str = "t") -> str:
    return chat_call(BODY, CallOrigin("r", tenant, {}, root_key=key)).session_id


def test_an_id_does_not_confirm_a_guess_of_the_first_message() -> None:
    guess = root_hash("t", "", "Is my diagnosis X?")
    for url, secret in (("nats://broker:4222", SECRET), (PASSWORD_URL, "")):
        key = root_key(secret, url)
        assert len(key) == 32
        assert guess not in made(key)


def test_gateways_of_a_deployment_agree_and_others_do_not() -> None:
    key = root_key("", PASSWORD_URL)
    assert session_key(made(key)) == session_key(made(root_key("", PASSWORD_URL)))
    assert root_key(SECRET, PASSWORD_URL) == root_key(SECRET, "nats://elsewhere:4222")
    assert key == root_key("", "nats://gateway:p4ssw0rd%21@elsewhere:4222")
    keys = {key, root_key(SECRET, PASSWORD_URL), root_key("", "nats://gateway:other@broker:4222")}
    assert len(keys) == 3
    assert len({session_key(made(one)) for one in keys}) == 3
    assert session_key(made(key)) != session_key(made(key, tenant="u"))


@pytest.mark.parametrize("url", ["nats://127.0.0.1:4222", "tls://broker:4222", "nats://token@broker:4222"])
def test_without_a_secret_there_is_no_key(url: str) -> None:
    assert root_key("", url) == b""


def test_later_turns_and_ids_from_before_route_as_they_did() -> None:
    request = GenerateRequest(request_id="r", model="m", messages=[ChatMessage(role="user", content="hi")])
    old = "s-0123456789abcdef-fedcba9876543210"
    assert session_key(old) == "0123456789abcdef"
    new = made(root_key(SECRET, ""))
    later = GenerateRequest(
        request_id="r2", model="m", messages=request.messages, session=SessionRef(session_id=new)
    )
    assert routing_key(later) == session_key(new)
    assert routing_key(request) == request_root(request)  # of a caller on the bus: it stays in the router
