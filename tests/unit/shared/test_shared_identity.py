"""Ids and routing keys: which requests have the same key, and which do not."""

import re

from shared.identity import new_request_id, new_session_id, request_root, routing_key
from shared.messages import ChatMessage, GenerateRequest, SessionRef
from shared.messages.base import ID_PATTERN, NAME_PATTERN


def chat(*contents: str, tenant: str = "default", session: SessionRef | None = None) -> GenerateRequest:
    roles = ("system", "user", "assistant", "user", "assistant", "user")
    messages = [ChatMessage(role=role, content=text) for role, text in zip(roles, contents, strict=False)]  # type: ignore[arg-type]
    return GenerateRequest(request_id="r", model="demo", messages=messages, tenant=tenant, session=session)


def test_request_ids_fit_the_protocol_and_differ() -> None:
    made = {new_request_id() for _ in range(1000)}
    assert len(made) == 1000
    assert all(re.match(ID_PATTERN, request_id) for request_id in made)


def test_a_conversation_keeps_its_root_as_it_grows() -> None:
    assert request_root(chat("sys", "hello")) == request_root(chat("sys", "hello", "hi", "more"))


def test_tenant_system_prompt_and_first_message_tell_conversations_apart() -> None:
    roots = {
        request_root(chat("sys", "hello")),
        request_root(chat("sys", "hello", tenant="other")),
        request_root(chat("sys2", "hello")),
        request_root(chat("sys", "hello2")),
        request_root(chat("sy", "shello")),
    }
    assert len(roots) == 5


def test_a_made_session_id_routes_like_the_request_it_was_made_for() -> None:
    first = chat("sys", "hello")
    session_id = new_session_id(request_root(first))
    assert re.match(NAME_PATTERN, session_id)
    later = chat("sys", "something else", session=SessionRef(session_id=session_id))
    assert routing_key(later) == routing_key(first) == request_root(first)


def test_a_given_session_id_is_its_own_key() -> None:
    assert routing_key(chat("sys", "a", session=SessionRef(session_id="my-session"))) == "my-session"


def test_plain_prompts_are_known_by_their_beginning() -> None:
    def root(prompt: str) -> str:
        return request_root(GenerateRequest(request_id="r", model="m", prompt=prompt))

    assert root("x" * 256 + "a") == root("x" * 256 + "b")
    assert root("a" + "x" * 256) != root("b" + "x" * 256)


def test_token_prompts_are_known_by_their_beginning() -> None:
    def root(tokens: bytes) -> str:
        return request_root(GenerateRequest(request_id="r", model="m", prompt_token_ids=tokens))

    assert root(bytes(256) + b"abcd") == root(bytes(256) + b"efgh")
    assert root(b"abcd") != root(b"efgh")


def test_lone_surrogates_do_not_break_the_hash() -> None:
    assert len(request_root(chat("sys", "\ud800"))) == 16
