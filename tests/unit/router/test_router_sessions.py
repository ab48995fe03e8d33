"""What a router stores about sessions, and how it completes a request with it."""

from typing import Any

import pytest

from services.router.domain.decision import RequestFacts
from services.router.domain.session_memory import Asker, KnownSession, SessionMemory
from services.router.incoming import read
from shared import subjects
from shared.bus import Message
from shared.codec import encode
from shared.identity import new_session_id, session_key
from shared.messages import ChatMessage, GenerateRequest, SessionRef

USER, ANSWER = ChatMessage(role="user", content="hi"), ChatMessage(role="assistant", content="hello")
ROOT = "0123456789abcdef"


def new_sessions(max_entries: int = 100) -> SessionMemory:
    return SessionMemory(ttl_s=60.0, max_entries=max_entries)


def facts(key: str = "s-1", prompt: int = 100, last: str = "") -> RequestFacts:
    return RequestFacts("m", key, prompt, last)


def test_an_unknown_session_is_new() -> None:
    completed, turn = new_sessions().complete_facts(facts(), Asker("t", "s-1", whole=False), 0.0)
    assert (completed.last_group, completed.session_tokens, completed.prompt_tokens) == ("", 0, 100)
    assert turn == 100


def test_what_leaders_tell_is_known_of_the_next_turn() -> None:
    sessions, asker = new_sessions(), Asker("t", "s-1", whole=False)
    sessions.note_sent(facts(), asker, "g0", 0.0)
    sessions.note_turn("t", "s-1", "s-1", KnownSession("g0", 300), 1.0)
    sessions.note_turn("t", "s-1", "s-1", KnownSession("g1", 700), 2.0)
    completed, turn = sessions.complete_facts(facts(), asker, 3.0)
    assert (completed.last_group, completed.session_tokens, completed.prompt_tokens) == ("g1", 700, 100)
    assert turn == 400  # tokens that the last turn added


def test_a_move_adds_nothing_and_a_turn_without_a_count_keeps_the_old_one() -> None:
    sessions = new_sessions()
    sessions.note_turn("t", "s-1", "s-1", KnownSession("g0", 300), 1.0)
    sessions.note_turn("t", "s-1", "s-1", KnownSession("g1", 300), 2.0)
    sessions.note_turn("t", "s-1", "s-1", KnownSession("g2", 0), 3.0)
    assert sessions.find("t", "s-1", "s-1", 4.0) == KnownSession("g2", 300, 300)


def test_a_request_that_repeats_its_conversation_brings_only_the_rest_as_new() -> None:
    sessions = new_sessions()
    sessions.note_turn("t", "s-1", "s-1", KnownSession("g0", 300), 0.0)
    completed, _ = sessions.complete_facts(facts(prompt=360), Asker("t", "s-1", continues=True), 1.0)
    assert (completed.session_tokens, completed.prompt_tokens) == (300, 60)
    completed, _ = sessions.complete_facts(facts(prompt=200), Asker("t", "s-1", continues=True), 1.0)
    assert (completed.session_tokens, completed.prompt_tokens) == (200, 0)
    # the session exists but is not known here: its KV is assumed to be at its preferred group
    completed, _ = sessions.complete_facts(facts("s-2", 200), Asker("t", "s-2", continues=True), 1.0)
    assert (completed.last_group, completed.session_tokens, completed.prompt_tokens) == ("", 200, 0)


def test_what_a_request_says_of_its_session_stands() -> None:
    sessions = new_sessions()
    sessions.note_turn("t", "s-1", "s-1", KnownSession("g0", 300), 0.0)
    completed, _ = sessions.complete_facts(facts(last="g7"), Asker("t", "s-1", whole=False), 1.0)
    assert completed.last_group == "g7"


def test_a_made_id_is_found_by_itself_and_by_its_root() -> None:
    sessions, first = new_sessions(), new_session_id(ROOT)
    assert session_key(first) == ROOT
    assert session_key("s-1") == "s-1"
    sessions.note_sent(facts(ROOT), Asker("t", first), "g1", 0.0)
    sessions.note_turn("t", first, session_key(first), KnownSession("g1", 50), 1.0)
    # the caller sends the id back
    completed, _ = sessions.complete_facts(facts(ROOT, 10), Asker("t", first, whole=False), 2.0)
    assert (completed.last_group, completed.session_tokens) == ("g1", 50)
    # the caller sends the conversation again, and gets another made id
    again = Asker("t", new_session_id(ROOT), continues=True)
    completed, _ = sessions.complete_facts(facts(ROOT, 60), again, 2.0)
    assert (completed.last_group, completed.session_tokens, completed.prompt_tokens) == ("g1", 50, 10)


def test_tenants_do_not_meet() -> None:
    sessions = new_sessions()
    sessions.note_turn("t", "s-1", "s-1", KnownSession("g0", 300), 0.0)
    assert sessions.find("other", "s-1", "s-1", 1.0) is None


def test_what_is_deleted_or_old_is_forgotten() -> None:
    sessions, made = new_sessions(), new_session_id(ROOT)
    sessions.note_turn("t", made, ROOT, KnownSession("g0", 300), 0.0)
    assert len(sessions) == 2
    sessions.forget_session("t", made, ROOT, 1.0)
    assert len(sessions) == 0
    sessions.note_turn("t", "s-1", "s-1", KnownSession("g0", 300), 0.0)
    sessions.expire(61.0)
    assert len(sessions) == 0


def test_the_memory_is_bounded() -> None:
    sessions = new_sessions(max_entries=10)
    for number in range(100):
        sessions.note_sent(facts(f"s-{number}"), Asker("t", f"s-{number}"), "g0", 0.0)
    assert len(sessions) == 10
    assert sessions.find("t", "s-99", "s-99", 1.0) is not None


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"messages": [USER], "session": SessionRef(session_id="s")}, Asker("t", "s", False, False)),
        ({"messages": [USER, ANSWER], "session": SessionRef(session_id="s")}, Asker("t", "s", True, True)),
        (
            {"messages": [ANSWER], "session": SessionRef(session_id="s", mode="append")},
            Asker("t", "s", False, True),
        ),
        (
            {"messages": [USER], "session": SessionRef(session_id="s", mode="replace")},
            Asker("t", "s", True, False),
        ),
        ({"messages": [USER], "session": SessionRef(session_id="s", given=False)}, Asker("t", "s", True)),
        ({"prompt": "hi", "session": SessionRef(session_id="s")}, Asker("t", "s", True)),
        ({"prompt": "hi"}, Asker("t", "", True)),
    ],
)
def test_who_asks_is_read_from_the_request(fields: dict[str, Any], expected: Asker) -> None:
    request = GenerateRequest(request_id="r-1", model="m", tenant="t", **fields)
    message = Message(subjects.generate("m"), encode(request), "_INBOX.a.r-1", {})
    assert read(message, 0.0).asker == expected
