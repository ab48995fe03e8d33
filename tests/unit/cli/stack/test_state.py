"""The state directory of a stack: who may read and write it, what is believed of it, and logs in it."""

import json
import os
from pathlib import Path

import pytest

from cli.console import CommandError
from cli.stack.host.private import MARKER
from cli.stack.state import ServiceState, StackState, StateDir, log_tail, start_time


def stack_state(pid: int, began: float) -> StackState:
    return StackState(
        pid, began, "http://x", "nats://x", "redis://x", "demo", True, [ServiceState("router", 7)]
    )


def test_a_state_is_read_back_while_its_supervisor_lives(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path)
    assert state_dir.read() is None
    assert state_dir.acquire()
    mine = stack_state(os.getpid(), start_time(os.getpid()) or 0.0)
    state_dir.write(mine)
    assert StateDir(tmp_path).read() == mine
    state_dir.write(stack_state(os.getpid(), 12.0))  # another process got this process id
    assert state_dir.read() is None
    state_dir.release()
    state_dir.release()
    assert {path.name for path in tmp_path.iterdir()} == {"logs", MARKER}


def test_a_state_with_passwords_is_for_this_user_only(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path)
    assert state_dir.acquire()
    state = stack_state(os.getpid(), start_time(os.getpid()) or 0.0)
    state.nats_url, state.nats_urls = "nats://outside:hush@h:1", {"cli": "nats://cli:hush@h:1"}
    state_dir.write(state)
    assert (tmp_path / "up.json").stat().st_mode & 0o777 == 0o600
    assert state.broker("cli") == "nats://cli:hush@h:1"
    assert state.broker("router") == "nats://outside:hush@h:1", "another broker has one URL for all"
    state.redis_url, state.kv_redis_url = "unix://kvstate:hush@/x?db=0", "unix://worker:hush@/y?db=0"
    assert "hush" not in str(state.public())
    state_dir.release()


def test_a_broken_state_file_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "up.json").write_text("{")
    assert StateDir(tmp_path).read() is None
    (tmp_path / "up.json").write_text('{"pid": 1}')
    assert StateDir(tmp_path).read() is None


def test_only_one_supervisor_has_a_directory(tmp_path: Path) -> None:
    first, second = StateDir(tmp_path), StateDir(tmp_path)
    assert first.acquire()
    assert not second.acquire()
    first.release()
    assert second.acquire()
    second.release()


def test_a_state_directory_that_cannot_be_made_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError, match="--state-dir"):
        StateDir(tmp_path / "file" / "state").acquire()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make another user's directories")
@pytest.mark.parametrize("whose", ["all of it", "the logs", "a link for the logs"])
def test_what_belongs_to_another_user_is_refused(tmp_path: Path, whose: str) -> None:
    path, theirs, victim = tmp_path / "state", 48_213, tmp_path / "victim"
    path.mkdir()
    victim.mkdir()
    victim.chmod(0o755)
    if whose == "all of it":
        os.chown(path, theirs, theirs)
    elif whose == "the logs":
        (path / "logs").mkdir()
        os.chown(path / "logs", theirs, theirs)
    else:
        (path / "logs").symlink_to(victim)
        os.chown(path / "logs", theirs, theirs, follow_symlinks=False)
    with pytest.raises(CommandError, match=r"belongs to another user.*--state-dir"):
        StateDir(path).acquire()
    parent = tmp_path / "parent"
    parent.mkdir()
    parent.chmod(0o777)
    with pytest.raises(CommandError, match=r"every user may replace what is in .*parent.*--state-dir"):
        StateDir(parent / "state").acquire()
    assert victim.stat().st_mode & 0o777 == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make another user's files")
@pytest.mark.parametrize("whose", ["theirs", "a link to ours"])
def test_the_state_that_another_user_wrote_is_not_believed(tmp_path: Path, whose: str) -> None:
    ours, theirs = tmp_path / "ours.json", tmp_path / "state" / "up.json"
    theirs.parent.mkdir()
    ours.write_text("{}")
    if whose == "theirs":
        theirs.write_text("{}")
        os.chown(theirs, 48_213, 48_213)
    else:
        theirs.symlink_to(ours)
    with pytest.raises(CommandError, match=r"up\.json is not this user's.*--state-dir"):
        StateDir(theirs.parent).read()


def test_a_state_directory_of_before_is_closed_and_one_with_other_files_keeps_its_mode(
    tmp_path: Path,
) -> None:
    old, shared = tmp_path / "old", tmp_path / "shared"
    for position in (old, shared):
        (position / "logs").mkdir(parents=True)
        position.chmod(0o755)
        (position / "logs").chmod(0o755)
    (shared / "notes.txt").touch()
    for position, mode in ((old, 0o700), (shared, 0o755)):
        StateDir(position).make()
        assert position.stat().st_mode & 0o777 == mode
        assert (position / "logs").stat().st_mode & 0o777 == 0o700
    shared.chmod(0o777)
    with pytest.raises(CommandError, match=r"every user may replace what is in .*shared"):
        StateDir(shared).make()
    shared.chmod(0o1777)
    StateDir(shared).make()


def test_the_logs_of_the_stack_before_are_put_aside(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path)
    state_dir.put_logs_aside()  # there are no logs yet
    state_dir.make()
    for text in ("first", "second"):
        for name in ("router", "worker-g1", "supervisor"):
            state_dir.log(name).write_text(text)
        state_dir.put_logs_aside()
        assert {path.name: path.read_text() for path in state_dir.logs.iterdir()} == {
            "router.log.1": text, "worker-g1.log.1": text, "supervisor.log": text,
        }  # fmt: skip


def test_the_tail_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    assert log_tail(log) == ""
    log.write_text("\n".join(str(number) for number in range(10_000)))
    assert log_tail(log, lines=2) == "9998\n9999"
    ours = {"event": "it ended", "level": "error", "timestamp": "2026-01-01T00:00:00Z", "service": "router"}
    log.write_text(json.dumps(ours | {"instance": "router-0", "error": "no such host"}))
    assert log_tail(log) == "error: it ended error=no such host"
