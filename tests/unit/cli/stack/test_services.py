"""The supervisor with shell scripts as services: start, restart, giving up, order and limits of the end."""

import asyncio
import errno
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import psutil
import pytest

from cli.console import CommandError
from cli.stack.state import StackState, StateDir, start_time
from cli.stack.supervision.process import ServiceProcess, ServiceSpec, explain_exit
from cli.stack.supervision.stack import Stack
from tests.kits.waiting import PATIENCE_S, until

POLITE = "trap 'echo {name} >> {ended}; exit 0' TERM; touch {ready}; while :; do sleep 0.02; done"
STUBBORN = "trap '' TERM; touch {ready}; while :; do sleep 0.02; done"


class Notes:
    """A progress report that records its calls."""

    def __init__(self) -> None:
        self.readies: list[str] = []
        self.texts: list[str] = []

    def waiting(self, name: str) -> None:
        pass

    def ready(self, name: str) -> None:
        self.readies.append(name)

    def note(self, text: str) -> None:
        self.texts.append(text)


async def yes() -> bool:
    return True


async def no() -> bool:
    return False


def noting(gone: list[str]) -> Callable[[str, int], None]:
    return lambda why, code: gone.append(f"{code}: {why}" if code else why)


class Bench:
    """Makes stacks of shell scripts in one directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ended = folder / "ended"
        self.state_dir = StateDir(folder / "state")
        self.notes = Notes()
        self.stacks: list[Stack] = []
        assert self.state_dir.acquire()

    def spec(
        self,
        name: str,
        script: str = POLITE,
        *,
        phase: int = 0,
        grace_s: float = 5.0,
        probe: Callable[[], Awaitable[bool]] | None = None,
    ) -> ServiceSpec:
        """Returns a service. Without `probe`, it is ready when its script has set its trap."""
        ready = self.folder / f"{name}.ready"

        async def trapped() -> bool:
            return "{ready}" not in script or ready.exists()

        text = script.replace("{name}", name).replace("{ended}", str(self.ended))
        text, probe = text.replace("{ready}", str(ready)), probe or trapped
        return ServiceSpec(name, ["/bin/sh", "-c", text], probe, phase, grace_s)

    def stack(self, *specs: ServiceSpec) -> Stack:
        state = StackState(
            os.getpid(), start_time(os.getpid()) or 0, "http://x", "nats://x", "redis://x", "m"
        )
        stack = Stack(list(specs), self.state_dir, state, self.notes)
        self.stacks.append(stack)
        return stack

    def pid(self, name: str) -> int:
        state = self.state_dir.read()
        assert state is not None
        return next(one.pid for one in state.services if one.name == name)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    yield made
    for stack in made.stacks:
        stack.request_stop()
        stack.request_stop()
        await stack.close()
    made.state_dir.release()


async def test_ends_in_the_order_of_the_phases(bench: Bench) -> None:
    stack = bench.stack(
        bench.spec("last", phase=2), bench.spec("first", phase=0), bench.spec("middle", phase=1)
    )
    assert await stack.start(timeout_s=PATIENCE_S)
    assert sorted(bench.notes.readies) == ["first", "last", "middle"]
    stack.request_stop()
    await stack.supervise()
    await stack.close()
    assert bench.ended.read_text().split() == ["first", "middle", "last"]


async def test_what_does_not_end_in_time_is_killed(bench: Bench) -> None:
    stack = bench.stack(bench.spec("stubborn", STUBBORN, grace_s=0.3))
    assert await stack.start(timeout_s=PATIENCE_S)
    pid = bench.pid("stubborn")
    await stack.close()
    assert start_time(pid) is None
    assert bench.notes.texts == ["stubborn did not end by itself; killed after 0.3 s"]


async def test_a_second_stop_does_not_wait(bench: Bench) -> None:
    stack = bench.stack(bench.spec("stubborn", STUBBORN, grace_s=30.0))
    assert await stack.start(timeout_s=PATIENCE_S)
    stack.request_stop()
    closing = asyncio.create_task(stack.close())
    await asyncio.sleep(0.1)
    began = time.monotonic()
    stack.request_stop()
    await closing
    assert time.monotonic() - began < 20, "it waited for the 30 s that a service has to end"
    assert "killed at once" in bench.notes.texts[0]


async def test_a_dead_service_is_started_again(bench: Bench) -> None:
    stack = bench.stack(bench.spec("service"))
    assert await stack.start(timeout_s=PATIENCE_S)
    old = bench.pid("service")
    os.kill(old, signal.SIGKILL)
    await until(lambda: bench.pid("service") != old and len(bench.notes.texts) == 2)
    assert bench.notes.texts == [
        "service died (killed by SIGKILL); starting it again in 0.2 s",
        "service is ready again",
    ]


async def test_a_service_that_is_killed_while_it_starts_is_started_again(
    bench: Bench, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"

    async def probe() -> bool:
        return ready.exists()

    stack = bench.stack(bench.spec("slow", probe=probe))
    starting = asyncio.create_task(stack.start(timeout_s=PATIENCE_S))
    killed = set[int]()
    for _ in range(3):
        await until(lambda: stack.pid("slow") not in {0, *killed})
        killed.add(stack.pid("slow"))
        os.kill(stack.pid("slow"), signal.SIGKILL)
    await until(lambda: stack.pid("slow") not in {0, *killed})
    ready.touch()
    assert await starting
    assert sum("died (killed by SIGKILL)" in text for text in bench.notes.texts) == 3


async def test_what_a_dead_service_left_is_killed(bench: Bench, tmp_path: Path) -> None:
    note = tmp_path / "grandchild"
    stack = bench.stack(bench.spec("parent", f"sleep 60 & echo $! > {note}; wait"))
    assert await stack.start(timeout_s=PATIENCE_S)
    await until(lambda: note.exists() and note.read_text().strip() != "")
    grandchild = psutil.Process(int(note.read_text()))
    os.kill(bench.pid("parent"), signal.SIGKILL)
    await until(lambda: not grandchild.is_running() or grandchild.status() == psutil.STATUS_ZOMBIE)


async def test_a_service_that_keeps_dying_ends_the_stack(bench: Bench) -> None:
    stack = bench.stack(bench.spec("broken", "echo the disk is full; exit 3", probe=no), bench.spec("good"))
    with pytest.raises(CommandError) as caught:
        await stack.start(timeout_s=10)
    assert "broken ended (exit code 3) and was started again 1 times before" in str(caught.value)
    assert "the disk is full" in str(caught.value)


async def test_a_refused_setting_ends_the_stack_at_once(bench: Bench) -> None:
    stack = bench.stack(bench.spec("service", "echo wrong setting >&2; exit 2", probe=no))
    with pytest.raises(CommandError, match="wrong setting") as caught:
        await stack.start(timeout_s=10)
    assert "started again" not in str(caught.value)


async def test_a_start_has_a_deadline(bench: Bench) -> None:
    stack = bench.stack(bench.spec("slow", "echo still loading; sleep 60", probe=no), bench.spec("quick"))
    with pytest.raises(CommandError, match=r"Not ready within 2 s: slow\.") as caught:
        await stack.start(timeout_s=2.0)
    assert "still loading" in str(caught.value)


async def test_a_stop_during_the_start_is_no_failure(bench: Bench) -> None:
    stack = bench.stack(bench.spec("slow", probe=no))
    starting = asyncio.create_task(stack.start(timeout_s=30))
    await asyncio.sleep(0.1)
    stack.request_stop()
    assert not await starting


async def test_a_long_log_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.stack.supervision.process.MAX_LOG_BYTES", 10)
    log = tmp_path / "service.log"
    child = ServiceProcess(ServiceSpec("service", ["true"], yes, 0, 1.0), log)
    child.trim_log()  # there is no log yet
    log.write_text("0123456789")
    child.trim_log()
    assert log.read_text() == "0123456789"
    log.write_text("0123456789a")
    child.trim_log()
    assert log.read_text() == ""
    assert (tmp_path / "service.log.1").read_text() == "0123456789a"


async def test_a_log_is_cut_also_when_no_copy_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.stack.supervision.process.MAX_LOG_BYTES", 100)
    log = tmp_path / "a.log"
    log.write_text("x" * 200)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("cli.stack.supervision.process.shutil.copyfile", full)
    ServiceProcess(ServiceSpec("a", ["/bin/true"], yes, 0, 1.0), log).trim_log()
    assert log.read_text() == ""
    assert not log.with_suffix(".log.1").exists()


async def test_a_full_disk_does_not_end_the_watch(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = bench.stack(bench.spec("a"))
    await stack.start(5.0)

    def full(_: StackState) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(bench.state_dir, "write", full)
    os.kill(bench.pid("a"), signal.SIGKILL)
    await until(lambda: "a is ready again" in bench.notes.texts)
    assert any("No space left" in text for text in bench.notes.texts)


def test_exit_codes_in_words() -> None:
    assert explain_exit(3) == "exit code 3"
    assert explain_exit(-9) == "killed by SIGKILL"
    assert explain_exit(-250) == "killed by signal 250"


async def test_a_service_is_added_and_ended_while_the_others_run(bench: Bench) -> None:
    stack, gone, asked = bench.stack(bench.spec("a")), list[str](), list[str]()
    assert await stack.start(timeout_s=PATIENCE_S)
    stack.add(bench.spec("b"), noting(gone))
    await until(lambda: stack.ready_at("b") is not None)
    assert psutil.pid_exists(stack.pid("b"))
    assert stack.pid("b") == bench.pid("b")

    async def drain() -> bool:
        asked.append("b")
        os.kill(stack.pid("b"), signal.SIGTERM)
        return True

    await stack.end("b", drain, 5)
    assert (asked, gone, stack.pid("b"), stack.ready_at("b")) == (["b"], [""], 0, None)
    state = bench.state_dir.read()
    assert state is not None
    assert [one.name for one in state.services] == ["a"]
    stack.add(bench.spec("b"), noting(gone))  # the name is free again
    await until(lambda: stack.ready_at("b") is not None)


async def test_a_service_that_cannot_be_asked_or_does_not_end_gets_signals(bench: Bench) -> None:
    stack, gone = bench.stack(bench.spec("a")), list[str]()
    assert await stack.start(timeout_s=PATIENCE_S)

    async def deaf() -> bool:
        return False

    async def hears() -> bool:
        return True

    for name, script, drain in (("b", POLITE, deaf), ("c", STUBBORN, deaf), ("d", STUBBORN, hears)):
        stack.add(bench.spec(name, script, grace_s=0.2), noting(gone))
        await until(partial(lambda name: stack.ready_at(name) is not None, name))
        await stack.end(name, drain, 0.2)
    assert gone == ["", "", ""]


async def test_a_service_that_may_go_ends_alone_when_it_cannot_be_kept(bench: Bench) -> None:
    stack, gone = bench.stack(bench.spec("a")), list[str]()
    assert await stack.start(timeout_s=PATIENCE_S)
    stack.add(bench.spec("b", "exit 2"), noting(gone))
    await until(lambda: bool(gone))
    assert "2: b ended (exit code 2)" in gone[0]
    assert gone[0].endswith(f"its log is {bench.state_dir.log('b')}")
    assert stack.pid("a")
    stack.request_stop()
    await asyncio.wait_for(stack.supervise(), PATIENCE_S)  # which raises if the stack has failed


async def test_a_service_that_cannot_start_is_quoted(bench: Bench) -> None:
    """What an earlier process of the same name has said does not count."""
    stack, gone = bench.stack(bench.spec("a")), list[str]()
    assert await stack.start(timeout_s=PATIENCE_S)
    says = 'echo "{\\"event\\": 1}"; echo "worker cannot start: the file x is gone"; echo "{}"; exit 2'
    stack.add(bench.spec("b", says), noting(gone))
    await until(lambda: bool(gone))
    assert gone == ["2: the file x is gone"]
    log = bench.state_dir.log("b")
    assert bench.notes.texts[-1] == f"b ended (exit code 2): the file x is gone; its log is {log}"
    stack.add(bench.spec("b", "exit 2"), noting(gone))
    await until(lambda: len(gone) == 2)
    assert gone[1] == f"2: b ended (exit code 2); its log is {log}"


async def test_a_service_ends_between_two_of_its_starts(bench: Bench) -> None:
    stack, gone = bench.stack(bench.spec("a")), list[str]()
    assert await stack.start(timeout_s=PATIENCE_S)
    stack.add(bench.spec("b", "touch {ready}; exit 1"), noting(gone))
    await until(lambda: any("b died" in text for text in bench.notes.texts))

    async def drain() -> bool:
        return False

    await stack.end("b", drain, 1)
    assert gone == [""]


async def test_a_service_that_cannot_be_started_is_said(bench: Bench) -> None:
    stack, gone = bench.stack(bench.spec("a")), list[str]()
    assert await stack.start(timeout_s=PATIENCE_S)
    stop_s = bench.state_dir.read().stop_s  # type: ignore[union-attr]
    (bench.state_dir.logs / "b.log").mkdir()
    stack.add(bench.spec("b", phase=1), noting(gone))
    await until(lambda: bool(gone))
    assert "1: b could not be started: " in gone[0]
    state = bench.state_dir.read()
    assert state is not None
    assert [one.name for one in state.services] == ["a"]
    assert state.stop_s == stop_s + 5.0  # `ryz down` waits for what may come, too


async def test_a_service_that_is_ended_while_it_is_forked_leaves_no_process(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, gone = bench.stack(bench.spec("a")), list[str]()
    assert await stack.start(timeout_s=PATIENCE_S)
    started = ServiceProcess.start

    async def start_late(process: ServiceProcess) -> None:
        try:
            await asyncio.sleep(60)
        finally:  # a fork that was asked for comes all the same
            await started(process)

    async def drain() -> bool:
        return False

    monkeypatch.setattr(ServiceProcess, "start", start_late)
    stack.add(bench.spec("b", "exec sleep 600", grace_s=1.0), noting(gone))
    await asyncio.sleep(0.05)
    await stack.end("b", drain, 1)
    own = psutil.Process().children(recursive=True)
    assert [line for one in own if "sleep 600" in (line := " ".join(one.cmdline()))] == []
    assert gone == [""]
