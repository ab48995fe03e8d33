"""Commands that an output names reach the same stack: they carry its state directory or its address."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.__main__ import app
from cli.chat.command import ChatOptions, gateway_words
from cli.console import CommandError
from cli.stack import runner
from cli.stack.machine import Settled
from cli.stack.options import UpOptions
from cli.stack.state import DEFAULT_DIR, StackState, StateDir, start_time, state_dir_words
from cli.stack.supervision import announcement
from cli.stack.supervision.announcement import announce

OTHER = Path("/tmp/other stack")
QUOTED = " --state-dir '/tmp/other stack'"


def running(pid: int) -> StackState:
    return StackState(
        pid, start_time(pid) or 0.0, "http://127.0.0.1:8000", "nats://h", "", "demo", ready=True
    )


def test_the_state_directory_is_named_when_it_is_not_the_default() -> None:
    assert state_dir_words(OTHER) == QUOTED
    assert state_dir_words(DEFAULT_DIR) == state_dir_words(StateDir(DEFAULT_DIR).path) == ""


def test_a_start_names_the_chat_of_its_stack(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcement, "called_as", lambda: "ryz")
    monkeypatch.setattr(announcement, "in_foreground", lambda _: True)
    announce(UpOptions(state_dir=OTHER), Settled((), "", 0.4), running(1))
    assert f"`ryz chat{QUOTED}`" in capsys.readouterr().out
    announce(UpOptions(), Settled((), "", 0.4), running(1))
    assert "`ryz chat`" in capsys.readouterr().out


def test_no_output_has_the_password_of_the_broker(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    state = running(os.getpid())
    state.nats_url = "nats://outside:hush@127.0.0.1:4222"
    state.nats_urls = {"outside": state.nats_url}
    announce(UpOptions(), Settled((), "", 0.4), state)
    said = capsys.readouterr().out
    assert "broker nats://***@127.0.0.1:4222" in said
    assert "hush" not in said


def test_a_second_start_is_told_how_to_end_the_first(tmp_path: Path) -> None:
    directory = tmp_path / "own"
    stack = StateDir(directory)
    stack.make()
    stack.write(running(os.getpid()))
    with pytest.raises(CommandError, match=f"`ryz down --state-dir {directory}`"):
        runner.refuse_if_up(directory)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (ChatOptions(), ""),
        (ChatOptions(state_dir=DEFAULT_DIR), ""),
        (ChatOptions(state_dir=OTHER), QUOTED),
        (ChatOptions(url="http://h:1"), " --url http://h:1"),
        (ChatOptions(url="http://h:1", state_dir=OTHER), " --url http://h:1"),  # the address is what counts
    ],
)
def test_a_chat_is_gone_on_with_at_the_same_gateway(options: ChatOptions, words: str) -> None:
    assert gateway_words(options) == words


@pytest.mark.parametrize("command", ["chat --once hello", "sessions list", "batch list"])
def test_a_gateway_that_does_not_answer_may_be_that_of_another_state_directory(command: str) -> None:
    result = CliRunner().invoke(app, [*command.split(), "--url", "http://127.0.0.1:9"])
    assert "`--state-dir`" in str(result.exception)
