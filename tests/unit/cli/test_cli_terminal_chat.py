"""The terminal of `ryz chat`: sessions, commands, Ctrl-C, failures and messages of several lines."""

from collections.abc import Generator
from typing import Any

import pytest

from cli.chat import command as chat
from cli.console import CommandError


class FakeApi:
    """Streams two words, or raises `error` after the first one, and records its requests."""

    url = "http://fake"

    def __init__(self, error: BaseException | None = None) -> None:
        self.asked: list[tuple[dict[str, Any], str]] = []
        self.error = error

    def stream(self, body: dict[str, Any], session_id: str) -> Generator[str, None, None]:
        self.asked.append((body, session_id))
        yield "one "
        if self.error is not None:
            raise self.error
        yield "two"


def conversation(fake: FakeApi, system: str = "") -> chat.TerminalChat:
    return chat.TerminalChat(fake, "demo", "s1", system, {"temperature": 0})  # type: ignore[arg-type]


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str | type[BaseException]) -> None:
    """Scripts what the user types. An exception type stands for a key such as Ctrl-C; Ctrl-D comes last."""
    script = iter([*lines, EOFError])

    def type_line(_: str) -> str:
        line = next(script)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", type_line)


def test_a_question_carries_the_session_and_only_the_new_message(capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeApi()
    conversation(fake, system="Be brief.").ask("hello")
    body, session_id = fake.asked[0]
    assert session_id == "s1"
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
    ]
    assert body["temperature"] == 0
    assert capsys.readouterr().out == "one two\n"


def test_commands_of_the_conversation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeApi()
    typed(monkeypatch, "first", "", "/session", "/new", "second", "/what", "/quit", "never sent")
    conversation(fake).converse()
    assert [body["messages"][0]["content"] for body, _ in fake.asked] == ["first", "second"]
    assert fake.asked[0][1] == "s1"
    assert fake.asked[1][1].startswith("chat-")
    said = capsys.readouterr().err
    assert "session s1" in said
    assert said.count(chat.HELP.split(",")[0]) == 2


def test_a_conversation_names_the_models_that_could_have_been_chosen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, "/quit", "/quit")
    conversation(FakeApi()).converse()
    assert "Also served" not in capsys.readouterr().err
    conversation(FakeApi()).converse(["smollm2-135m", "\x1b[2Jgemma"])
    said = capsys.readouterr().err
    assert "Also served: smollm2-135m, " in said
    assert "gemma (`--model NAME`)" in said
    assert "\x1b" not in said


def test_ctrl_c_stops_an_answer_and_then_leaves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, "a long story", KeyboardInterrupt, "never read")
    conversation(FakeApi(KeyboardInterrupt())).converse()
    output = capsys.readouterr()
    assert "one" in output.out
    assert output.err.count("Ctrl-C again leaves") == 1
    assert "ryz chat --session s1" in output.err


def test_one_ctrl_c_at_the_prompt_only_hints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeApi()
    typed(monkeypatch, KeyboardInterrupt, "still here", KeyboardInterrupt, KeyboardInterrupt, "never sent")
    conversation(fake).converse()
    assert [body["messages"][0]["content"] for body, _ in fake.asked] == ["still here"]
    assert capsys.readouterr().err.count("Ctrl-C again leaves") == 2


def test_a_failed_turn_does_not_end_the_conversation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeApi(CommandError("the group is gone"))
    typed(monkeypatch, "hello", "again")
    conversation(fake).converse()
    assert len(fake.asked) == 2
    assert "the group is gone" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["plain"], "plain"),
        (["one\\", "two\\", "three"], "one\ntwo\nthree"),
        (['"""', "a", "", "b", '"""'], "a\n\nb"),
        ([], None),
        (['"""', "unfinished"], None),
    ],
)
def test_messages_of_several_lines(
    monkeypatch: pytest.MonkeyPatch, lines: list[str], message: str | None
) -> None:
    typed(monkeypatch, *lines)
    assert chat.read_message() == message
