"""What a model writes does not command the terminal that shows it (OWASP LLM05)."""

import io
from typing import Any

import pytest
from rich.console import Console

from cli import chat
from cli.sessions_view import detail
from cli.visible import visible

ATTACKS = {
    "clipboard": "\x1b]52;c;cm0gLXJmIH4K\x07",
    "title": "\x1b]0;root@bank\x07",
    "erased": "rm -rf ~\x1b[2K\x1b[1Gls",
    "report": "\x1b[6n",
    "eight bits": "\x9b6n",
    "overwritten": "evil\rgood",
    "backspace": "a\x08b",
    "order": "\u202egpj.exe",
}


class Terminal(io.StringIO):
    """A stdout that says it is a terminal, or not."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


class Api:
    """Answers in pieces."""

    def __init__(self, pieces: list[str]) -> None:
        self._pieces = pieces

    def stream(self, body: dict[str, Any], session_id: str) -> Any:
        yield from self._pieces


def commands(text: str) -> list[str]:
    return [mark for mark in text if (ord(mark) < 32 and mark not in "\n\t") or 127 <= ord(mark) < 160]


def ask(text: str, is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> str:
    out = Terminal(is_terminal)
    monkeypatch.setattr("sys.stdout", out)
    talk = chat.Conversation(Api(list(text)), "demo", "s1", "", {})  # type: ignore[arg-type]
    talk.ask("hello")
    return out.getvalue()


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_answer_is_shown_and_not_obeyed(attack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = ask(f"before{ATTACKS[attack]}after", True, monkeypatch)
    assert commands(shown) == []
    assert "\u202e" not in shown
    assert shown.startswith(
        "before\\x" if attack not in {"erased", "overwritten", "backspace", "order"} else "before"
    )
    assert shown.endswith("after\n")


def test_what_is_piped_on_stays_as_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask("".join(ATTACKS.values()), False, monkeypatch) == "".join(ATTACKS.values()) + "\n"


def test_other_text_stays() -> None:
    text = "a\n\tb ü 漢字 🙂\u200d مرحبا"
    assert visible(text) == text


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_session_is_shown_and_not_obeyed(attack: str) -> None:
    session = {
        "session_id": ATTACKS[attack], "tenant": "acme", "model": "demo", "turns": 1, "num_messages": 1,
        "tokens": 1, "bytes": 0, "blocks": 0, "byte_seconds": 0.0, "age_s": 1, "ttl_s": 0, "last_group": "",
        "pinned_group": "", "messages": [{"role": "user", "content": ATTACKS[attack]}],
    }  # fmt: skip
    out = io.StringIO()
    Console(file=out, force_terminal=False, width=200).print(detail(session))
    assert commands(out.getvalue()) == []
