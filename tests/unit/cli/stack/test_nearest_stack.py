"""The stack that a command finds where no state directory was named."""

import os
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.__main__ import app
from cli.console import CommandError
from cli.stack.host.known_stacks import forget_stack, recorded_stacks, remember_stack
from cli.stack.state import StackState, StateDir, start_time


@pytest.fixture(autouse=True)
def _of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    for variable in ("RYZ_URL", "RYZ_NATS_URL"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")


def running(folder: Path, url: str) -> StateDir:
    """A stack in that folder whose supervisor is this process."""
    stack = StateDir(folder / ".ryz")
    assert stack.acquire()
    began = start_time(os.getpid()) or 0.0
    stack.write(StackState(os.getpid(), began, url, "nats://127.0.0.1:9", "redis://x", "demo", True))
    remember_stack(stack.path)
    return stack


def asked(*options: str) -> str:
    """The address that `ryz chat` asks: nothing listens there."""
    error = CliRunner().invoke(app, ["chat", "--once", "hi", *options]).exception
    assert isinstance(error, CommandError)
    return str(error)


def test_the_one_stack_that_is_up_is_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.http_api.somebody_listens", lambda url: False)
    assert "No stack is up in" in asked()
    stack = running(tmp_path / "one", "http://127.0.0.1:9")
    assert "No answer from http://127.0.0.1:9" in asked()
    assert "No answer from http://127.0.0.1:7" in asked("--url", "http://127.0.0.1:7")
    assert "No stack is up in" in asked("--state-dir", str(tmp_path / "none"))
    assert "No stack is up in" in asked("--state-dir", ".ryz"), "a directory that is named is meant"
    entry = next((tmp_path / "state-home").rglob("*.path"))
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600
    forget_stack(stack.path)
    stack.release()
    assert recorded_stacks() == []


def test_an_address_in_the_environment_comes_before_other_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = running(tmp_path / "one", "http://127.0.0.1:9")
    monkeypatch.setenv("RYZ_URL", "http://127.0.0.1:6")
    assert "No answer from http://127.0.0.1:6" in asked()
    stack.release()


def test_of_several_none_is_chosen(tmp_path: Path) -> None:
    stacks = [running(tmp_path / name, f"http://127.0.0.1:{port}") for name, port in (("a", 9), ("b", 7))]
    said = asked()
    assert all(str(stack.path) in said for stack in stacks)
    assert said.endswith("Name one: `--state-dir`.")
    assert "No answer from http://127.0.0.1:6" in asked("--url", "http://127.0.0.1:6")
    assert "No answer from http://127.0.0.1:7" in asked("--state-dir", str(tmp_path / "b" / ".ryz"))
    stacks[0].release()
    assert "No answer from http://127.0.0.1:7" in asked(), "the one that was ended does not count"
    stacks[1].release()


def test_records_of_folders_that_are_gone_are_removed(tmp_path: Path) -> None:
    remember_stack(tmp_path / "gone" / ".ryz")
    kept = tmp_path / "kept"
    kept.mkdir()
    remember_stack(kept)
    assert recorded_stacks() == [kept]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make another user's files")
def test_a_record_that_another_user_wrote_is_not_believed(tmp_path: Path) -> None:
    remember_stack(tmp_path)
    entry = next((tmp_path / "state-home").rglob("*.path"))
    os.chown(entry, 48_213, 48_213)
    assert recorded_stacks() == []
