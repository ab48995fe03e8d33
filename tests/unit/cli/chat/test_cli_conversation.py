"""The terminal of `ryz chat`: which model it asks, what it sends, and the commands of a conversation."""

import json
import re
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli import http_api as api
from cli.__main__ import app
from cli.chat import terminal as chat
from cli.chat.answers import StreamPosition
from cli.chat.served_models import ListedModel
from cli.console import CommandError


class FakeApi:
    """Streams two words, or raises `error` after the first one, and records its requests.

    Args:
        context: More tokens are refused; 0: none are.
        listed: The models.
    """

    url = "http://fake"

    def __init__(
        self, error: BaseException | None = None, *, context: int = 0, listed: Sequence[ListedModel] = ()
    ) -> None:
        self.asked: list[tuple[dict[str, Any], str]] = []
        self.error = error
        self.cuts = False
        self.tokens = 0
        self.said: list[dict[str, str]] = []
        self._context = context
        self._listed = listed

    def models(self) -> list[ListedModel]:
        return [*self._listed]

    def close(self) -> None:
        pass

    def conversation(self, session_id: str) -> list[dict[str, str]]:
        return [*self.said]

    def stream(
        self, body: dict[str, Any], session_id: str, position: StreamPosition
    ) -> Generator[str, None, None]:
        self.asked.append((body, session_id))
        if self._context and body.get("max_tokens", 0) > self._context:
            raise api.ApiError("the maximum context length is ...", 1, "context_length_exceeded")
        position.cut, position.tokens = self.cuts, self.tokens
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


@pytest.mark.parametrize(
    ("given", "context", "limits", "said"),
    [
        ({}, 0, [chat.MAX_TOKENS], "cut at 1024 tokens; `--max-tokens N` allows more"),
        ({}, 512, [chat.MAX_TOKENS, None], "cut at the end of the context"),
        ({"max_tokens": 7}, 0, [7], ""),
    ],
)
def test_an_answer_has_a_limit_and_what_is_cut_is_said(
    given: dict[str, float], context: int, limits: list[int | None], said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    fake = FakeApi(context=context)
    talk = chat.TerminalChat(fake, "demo", "s1", "", given)  # type: ignore[arg-type]
    fake.cuts = True
    talk.ask("hello")
    assert [body.get("max_tokens") for body, _ in fake.asked] == limits
    shown = capsys.readouterr()
    assert shown.out == "one two\n"
    assert said in shown.err if said else not shown.err


def test_a_limit_that_was_asked_for_and_does_not_fit_is_refused() -> None:
    fake = FakeApi(context=512)
    talk = chat.TerminalChat(fake, "demo", "s1", "", {"max_tokens": 600})  # type: ignore[arg-type]
    with pytest.raises(CommandError, match="maximum context length"):
        talk.ask("hello")
    assert len(fake.asked) == 1


def test_a_model_that_is_ready_is_asked_and_the_others_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [
        ListedModel("broken", "failed"),
        ListedModel("cold", "asleep", pinned=True),
        ListedModel("first"),
        ListedModel("kept", pinned=True),
    ]
    fake = FakeApi(listed=listed)
    monkeypatch.setattr(api, "ChatApi", lambda url, key: fake)
    done = CliRunner().invoke(app, ["chat", "--once", "hello", "--url", "http://fake"])
    assert (done.exit_code, done.stdout) == (0, "one two\n")
    assert fake.asked[0][0]["model"] == "kept"
    others = "first, cold (asleep), broken (failed)"
    assert done.stderr == f"kept is asked; `--model NAME` asks another: {others}\n"
    named = CliRunner().invoke(app, ["chat", "--once", "hi", "--model", "cold", "--url", "http://fake"])
    assert (fake.asked[1][0]["model"], named.stderr) == ("cold", "")
    alone = FakeApi(listed=[ListedModel("cold", "asleep")])
    monkeypatch.setattr(api, "ChatApi", lambda url, key: alone)
    said = CliRunner().invoke(app, ["chat", "--once", "hi", "--url", "http://fake"]).stderr
    assert said == "cold is asleep: the first answer waits until it is loaded.\n"
    assert alone.asked[0][0]["model"] == "cold"


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
    assert "There is no command /what." in said


def test_the_models_that_are_also_served_are_others(capsys: pytest.CaptureFixture[str]) -> None:
    for more in ([], [ListedModel("cold", "asleep")]):
        conversation(FakeApi(listed=[ListedModel("demo"), *more])).run_command("/model")
    assert capsys.readouterr().err == "demo; no other is served\ndemo; also served: cold (asleep)\n"


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


def test_commands_go_back_change_the_model_and_save(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    fake = FakeApi(listed=[ListedModel("demo"), ListedModel("other")])
    fake.said = [{"role": "user", "content": "first"}, {"role": "assistant", "content": "one two"}]
    saved, text = tmp_path / "a.json", tmp_path / "a.md"
    typed(monkeypatch, "first", "/regen", f"/save {saved}", f"/save {saved}", f"/save {text}", "/model nope",
          "/model other", "more", "/system Be brief.", "fresh")  # fmt: skip
    conversation(fake).converse()
    first, again, more, fresh = fake.asked
    assert again[0]["messages"] == [{"role": "user", "content": "first"}]
    assert again[1] != first[1], "the session that has the former answer is left"
    assert "session_must_exist" not in again[0]
    assert more[0]["model"] == "other"
    assert more[0]["messages"] == [*fake.said, {"role": "user", "content": "more"}]
    assert [one["role"] for one in fresh[0]["messages"]] == ["system", "user"]
    assert len({session for _, session in fake.asked}) == 4
    assert json.loads(saved.read_text()) == {"model": "demo", "messages": fake.said}
    assert text.read_text() == "**user**\n\nfirst\n\n**assistant**\n\none two\n\n"
    said = capsys.readouterr().err
    assert f"There is {saved} already; name another file." in said
    assert "No model nope is served; there are demo, other." in said
    assert "chat --model other --session" in said


def test_commands_that_have_nothing_to_work_on_say_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, "/regen", "/save", "/system")
    conversation(FakeApi()).converse()
    said = capsys.readouterr().err
    assert "There is no message to answer again." in said
    assert "There is nothing to save yet." in said
    assert "There is no system prompt." in said


def test_a_conversation_says_how_fast_answers_come(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeApi()
    fake.tokens = 7
    typed(monkeypatch, "hello")
    conversation(fake).converse()
    assert fake.asked[0][0]["stream_options"] == {"include_usage": True}
    assert re.search(r"\(7 tokens, [\d,.]+ a second, the first after 0\.\d\d s\)", capsys.readouterr().err)
    conversation(fake).ask("once")
    assert "tokens" not in capsys.readouterr().err
    assert chat.speed_words(StreamPosition(tokens=11), 0.5, 2.0) == (
        "(11 tokens, 5.0 a second, the first after 0.50 s)"
    )
    assert chat.speed_words(StreamPosition(tokens=1), 0.5, 0.0) == "(1 tokens, the first after 0.50 s)"


@pytest.mark.parametrize(("variable", "coloured"), [("", True), ("NO_COLOR", False)])
def test_what_is_typed_looks_different_from_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str, coloured: bool
) -> None:
    shown = list[str]()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)

    def type_line(prompt: str) -> str:
        shown.append(prompt)
        return "hello"

    monkeypatch.setattr("builtins.input", type_line)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if variable:
        monkeypatch.setenv(variable, "1")
    assert chat.read_message() == "hello"
    assert shown == ["\001\x1b[1;36m\002> " if coloured else "> "]
    assert capsys.readouterr().out == ("\x1b[0m" if coloured else "")
