"""The table `What lasts` of docs/operations.md for `ryz up`: each kind of thing, each kind of restart."""

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil

from tests.kits.e2e.lasting_things import LastingThings
from tests.kits.e2e.stack import Stack
from tests.kits.waiting import wait_for
from tools.docs.manual.command_blocks import ROOT, blocks, commands

NULL = ("--engine", "null", "--groups", "1")
IN_STATE_DIR = {"files", "batches", "bus users", "tenants", "keys", "prices", "audit log", "usage"}
IN_SESSION_STORE = {"sessions", "pins", "responses", "idempotency keys of sessions"}


def kill_everything(stack: Stack) -> None:
    """Kills the supervisor and all that it started, at once, as when the machine goes down."""
    stack.remember()
    for process in (psutil.Process(stack.process.pid), *stack.family):
        with suppress(psutil.NoSuchProcess):  # it ended with its parent
            process.send_signal(signal.SIGKILL)
    stack.process.wait(timeout=10)
    wait_for(lambda: not stack.leftovers(), "all have ended")


def test_what_lasts_with_a_directory_for_sessions(tmp_path: Path) -> None:
    options = (*NULL, "--redis-dir", str(tmp_path / "kept"))
    with Stack(tmp_path, *options) as first:
        things = LastingThings(first.await_ready())
        assert things.present(first) == IN_SESSION_STORE | IN_STATE_DIR
        assert first.end() == 0
    lose_and_restore(tmp_path)
    with Stack(tmp_path, *options) as second:
        second.await_ready()
        assert things.present(second) == IN_SESSION_STORE | IN_STATE_DIR
        assert things.is_deleted(second)
        restart_store(second)
        assert things.present(second) == IN_SESSION_STORE | IN_STATE_DIR
        assert read_at_start(second)["sessions"] >= 3
        kill_everything(second)
    with Stack(tmp_path, *options) as third:
        third.await_ready()
        assert things.present(third) == IN_SESSION_STORE | IN_STATE_DIR
        assert things.is_deleted(third)
        assert third.end() == 0


def lose_and_restore(folder: Path) -> None:
    """Runs the commands of docs/backup.md, and between them deletes what they have copied."""
    page = "docs/backup.md"
    copy, restore = [
        command.text
        for block in blocks(page, (ROOT / page).read_text())
        if block.reason == "runs in the tests of restarts"
        for command in commands(block)
    ]
    subprocess.run(copy, shell=True, cwd=folder, check=True)
    for name in (".ryz", "kept"):
        shutil.rmtree(folder / name)
    subprocess.run(restore, shell=True, cwd=folder, check=True)


def restart_store(stack: Stack) -> None:
    """Kills the session store, and waits until its successor has been counted."""
    before = stack.pid_of("redis")
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: stack.pid_of("redis") != before, "Redis is started again")
    wait_for(lambda: kvstate(stack)["store"] == "up", "the session store is back")


def kvstate(stack: Stack) -> dict[str, object]:
    services = stack.status()["services"]
    return next((one["detail"] for one in services if one["service"] == "kvstate"), {"store": "?"})


def read_at_start(stack: Stack) -> dict[str, int]:
    reported = kvstate(stack)["store_read"]
    assert isinstance(reported, dict)
    return reported


def test_what_lasts_without_a_directory_for_sessions(tmp_path: Path) -> None:
    with Stack(tmp_path, *NULL) as first:
        things = LastingThings(first.await_ready())
        assert things.present(first) == IN_SESSION_STORE | IN_STATE_DIR
        assert first.end() == 0
    with Stack(tmp_path, *NULL) as second:
        second.await_ready()
        assert things.present(second) == IN_STATE_DIR
        kill_everything(second)
    with Stack(tmp_path, *NULL) as third:
        third.await_ready()
        assert things.present(third) == IN_STATE_DIR
        assert third.end() == 0
