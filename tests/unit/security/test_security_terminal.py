"""Text from a model cannot control the terminal that shows it (OWASP LLM05)."""

import inspect
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cli import console
from cli.__main__ import main
from cli.chat import terminal as chat
from cli.chat.answers import StreamPosition
from cli.command_groups import GatewayOptions
from cli.sessions import commands as sessions
from cli.sessions.api import SessionsApi
from cli.sessions.view import detail, listing
from cli.stack.state import StackState, StateDir, start_time
from cli.status.query import StatusReport
from cli.status.view import render
from cli.visible import json_text, visible
from shared.messages import ServiceStatus

ATTACKS = {
    "clipboard": "\x1b]52;c;cm0gLXJmIH4K\x07",
    "title": "\x1b]0;root@bank\x07",
    "erased": "rm -rf ~\x1b[2K\x1b[1Gls",
    "report": "\x1b[6n",
    "eight bits": "\x9b6n",
    "overwritten": "evil\rgood",
    "backspace": "a\x08b",
    "order": "\u202egpj.exe",
    "isolate": "a\u2066b\u200ec",
    "link": "[link=file:///etc/passwd]here[/link][/]",
}
MARKS = "\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


class Terminal(io.StringIO):
    """A stdout that claims to be a terminal if `is_terminal` is set."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.raw = io.BytesIO()
        self._is_terminal = is_terminal

    @property
    def buffer(self) -> io.BytesIO:
        return self.raw

    def isatty(self) -> bool:
        return self._is_terminal


class Api:
    """Streams the given pieces."""

    def __init__(self, pieces: list[str]) -> None:
        self._pieces = pieces

    def stream(self, body: dict[str, Any], session_id: str, position: StreamPosition) -> Any:
        yield from self._pieces


def commands(text: str) -> list[str]:
    return [
        mark
        for mark in text
        if (ord(mark) < 32 and mark not in "\n\t") or 127 <= ord(mark) < 160 or mark in MARKS
    ]


def spelled(attack: str) -> str:
    """Returns an attack as our consoles show it. Rich itself removes BEL, BS and CR first."""
    return visible(ATTACKS[attack].translate(dict.fromkeys(b"\x07\x08\r")))


def ask(text: str, is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> str:
    out = Terminal(is_terminal)
    monkeypatch.setattr("sys.stdout", out)
    talk = chat.TerminalChat(Api(list(text)), "demo", "s1", "", {})  # type: ignore[arg-type]
    talk.ask("hello")
    return out.getvalue()


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_answer_is_shown_and_not_obeyed(attack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = ask(f"before{ATTACKS[attack]}after", True, monkeypatch)
    assert commands(shown) == []
    assert "\u202e" not in shown
    begins = {"clipboard", "title", "report", "eight bits"}
    assert shown.startswith("before\\x" if attack in begins else "before")
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


@contextmanager
def state_file(directory: Path, text: str) -> Iterator[None]:
    """Writes a stack's state that contains the text, and runs a process in place of the supervisor."""
    supervisor = subprocess.Popen(
        [sys.executable, "-c", "import signal; print(flush=True); signal.pause()"], stdout=subprocess.PIPE
    )
    try:
        assert supervisor.stdout is not None
        supervisor.stdout.readline()
        StateDir(directory).make()
        StateDir(directory).write(
            StackState(
                pid=supervisor.pid,
                started_at=start_time(supervisor.pid) or 0.0,
                url=f"http://{text}",
                nats_url=f"nats://{text}:1",
                redis_url="",
                model=text,
                ready=True,
            )
        )
        yield
    finally:
        supervisor.kill()
        supervisor.wait()
        supervisor.stdout and supervisor.stdout.close()


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("command", ["up", "down"])
def test_what_stands_in_the_state_file_is_shown_and_not_obeyed(
    attack: str,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["ryz", command, "--state-dir", str(tmp_path)])
    with state_file(tmp_path, ATTACKS[attack]), pytest.raises(SystemExit):
        main()
    said = "".join(capsys.readouterr())
    assert spelled(attack) in said
    assert commands(said) == []


def hostile_report(text: Any) -> StatusReport:
    worker = {
        "group": text, "state": text, "model": text, "failure": text, "degraded": [text],
        "kv_store": {"state": text}, "ranks": [{"rank": text, "state": text, "host": text, "kernels": text}],
    }  # fmt: skip
    silent = {"group": f"{text}2", "state": text, "model": text, "lost": text, "instance_id": text}
    kinds: dict[str, Any] = {"worker": worker, "router": {"groups": [silent]}, "kvstate": {"store": text}}
    services = [
        ServiceStatus(
            service=kind, instance_id=text, state=text, pid=1, uptime_s=1.0, version=text, detail=detail
        )
        for kind, detail in kinds.items()
    ]
    return StatusReport(f"nats://{text}", None, services)


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_services_say_of_themselves_is_shown_and_not_obeyed(
    attack: str, capsys: pytest.CaptureFixture[str]
) -> None:
    console.out.print(render(hostile_report(ATTACKS[attack])))
    known = {
        "session_id": ATTACKS[attack], "model": ATTACKS[attack], "turns": 1, "tokens": 1, "bytes": 0,
        "age_s": 1, "ttl_s": 0, "last_group": ATTACKS[attack], "pinned_group": ATTACKS[attack],
    }  # fmt: skip
    console.out.print(listing([known]))
    console.err.print(f"the gateway says: {ATTACKS[attack]}", style="red", soft_wrap=True)
    out, err = capsys.readouterr()
    assert spelled(attack)[:4] in out
    assert spelled(attack) in err
    assert commands(out) == commands(err) == []


@pytest.mark.parametrize("attack", ATTACKS)
def test_json_says_the_same_in_other_letters(attack: str) -> None:
    value = {"session_id": ATTACKS[attack], "kept": "über \n 漢字"}
    text = json_text(value)
    assert commands(text) == []
    assert "漢字" in text
    assert json.loads(text) == value


@pytest.mark.parametrize("is_terminal", [True, False])
def test_an_exported_session_is_shown_and_not_obeyed(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = {"messages": list(ATTACKS.values())}
    content = json.dumps(value, ensure_ascii=False).encode()
    out = Terminal(is_terminal)
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr(SessionsApi, "export", lambda *_: ("name", content))
    inspect.unwrap(sessions.export)("s1", output="-", common=GatewayOptions(url="http://127.0.0.1:9"))
    if is_terminal:
        assert commands(out.getvalue()) == []
        assert json.loads(out.getvalue()) == value
    else:
        assert out.raw.getvalue() == content
