"""Requests without a session: what their fields say of the group that gets them, by `RYZ_SESSION_FROM`."""

from typing import Any

import msgspec
import pytest

from services.gateway.answering.call import Call
from services.gateway.formats.anthropic.schema import MessagesRequest
from services.gateway.formats.anthropic.translation import message_call
from services.gateway.formats.chat.call import chat_call
from services.gateway.formats.chat.schema import ChatCompletionRequest
from services.gateway.formats.fields.body_format import CallOrigin
from services.gateway.formats.text.call import completion_call
from services.gateway.formats.text.schema import CompletionRequest
from services.gateway.settings import SessionFrom
from shared.identity import request_root, routing_key

KEYS = {"prompt_cache_key": "agent-7", "user": "ada"}


def origin(session_from: SessionFrom, tenant: str = "t", **headers: str) -> CallOrigin:
    raw = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    return CallOrigin("r", tenant, raw, root_key=b"secret", session_from=session_from)


def chat(text: str, session_from: SessionFrom, tenant: str = "t", **fields: Any) -> Call:
    body = {"model": "m", "messages": [{"role": "user", "content": text}]} | fields
    return chat_call(ChatCompletionRequest.model_validate(body), origin(session_from, tenant))


def group_key(call: Call) -> str:
    """What a router computes the preferred group from."""
    return routing_key(call.requests[0])


def test_one_cache_key_is_one_group_whatever_the_conversation_begins_with() -> None:
    first, other = (chat(text, "cache_key", prompt_cache_key="agent-7") for text in ("Hello", "Goodbye"))
    assert group_key(first) == group_key(other)
    assert first.session_id != other.session_id  # they are two conversations all the same
    session = first.requests[0].session
    assert session is not None
    assert not session.given
    assert group_key(first) != group_key(chat("Hello", "cache_key", prompt_cache_key="agent-8"))
    assert group_key(first) != group_key(chat("Hello", "cache_key"))


def test_a_key_of_another_tenant_is_another_one() -> None:
    keys = {group_key(chat("Hello", "user", tenant, **KEYS)) for tenant in ("t", "u")}
    users = {group_key(chat("Hello", "user", tenant, user="ada")) for tenant in ("t", "u")}
    assert len(keys | users) == 4


@pytest.mark.parametrize(
    ("session_from", "fields", "as_with"),
    [
        ("conversation", KEYS, {}),
        ("cache_key", {"user": "ada"}, {}),
        ("cache_key", KEYS, {"prompt_cache_key": "agent-7"}),
        ("user", KEYS, {"prompt_cache_key": "agent-7"}),
        ("user", {"user": "ada", "prompt_cache_key": ""}, {"user": "ada"}),
        ("user", {"user": ""}, {}),
    ],
)
def test_the_setting_says_what_counts(
    session_from: SessionFrom, fields: dict[str, str], as_with: dict[str, str]
) -> None:
    counts = chat("Hello", session_from if as_with else "conversation", **as_with)
    assert group_key(chat("Hello", session_from, **fields)) == group_key(counts)


def test_a_session_that_is_named_comes_first() -> None:
    named = chat("Hello", "user", session_id="my-cat", **KEYS)
    assert group_key(named) == "my-cat"
    body = ChatCompletionRequest.model_validate(
        {"model": "m", "messages": [{"role": "user", "content": "Hello"}]} | KEYS
    )
    by_header = chat_call(body, origin("user", x_session_id="my-dog"))
    assert group_key(by_header) == "my-dog"


def test_messages_have_the_user_in_their_metadata() -> None:
    def message(text: str, session_from: SessionFrom) -> Call:
        body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": text}]}
        parsed = MessagesRequest.model_validate(body | {"metadata": {"user_id": "ada"}})
        return message_call(parsed, origin(session_from))

    assert group_key(message("Hello", "user")) == group_key(chat("Goodbye", "user", user="ada"))
    assert group_key(message("Hello", "cache_key")) != group_key(message("Goodbye", "cache_key"))


def test_requests_that_are_no_turns_have_the_key_beside_them() -> None:
    def completion(text: str, **fields: Any) -> Call:
        body = CompletionRequest.model_validate({"model": "m", "prompt": [text]} | fields)
        return completion_call(body, origin("cache_key"), max_prompts=4)

    first, other = (completion(text, prompt_cache_key="agent-7") for text in ("Hello", "Goodbye"))
    assert first.requests[0].session is None
    assert group_key(first) == group_key(other)
    of_another = msgspec.structs.replace(first.requests[0], tenant="u")
    assert routing_key(of_another) != group_key(first)  # also if a service outside sends it by itself
    alone = completion("Hello")
    assert group_key(alone) == request_root(alone.requests[0])
