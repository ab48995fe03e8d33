"""The process that sends a leader's heartbeats: what it sees of the leader, and what happens without it."""

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import accumulate, pairwise
from pathlib import Path

import pytest

from services.worker.leader.heartbeats.page import HeartbeatPage
from services.worker.leader.heartbeats.process_carrier import MODULE, ProcessCarrier
from shared import codec, subjects
from shared.bus import Message
from shared.bus.nats import NatsBus
from shared.errors import Unavailable
from shared.host.own_python import module_command
from shared.messages import Heartbeat, Load, ModelCard
from tests.kits.proxies.tcp import TcpProxy
from tests.kits.servers import NatsServer, free_port
from tests.kits.waiting import PATIENCE_S, until
from tests.kits.worker.carried_leader import INTERVAL_S, STALE_S
from tests.kits.worker.options import heartbeat_process

GROUP = "hp0"
GAP_S = 1.0  # 0.15 on an idle machine; a process takes about half a second to start there


class Heard:
    """The heartbeats of the group."""

    def __init__(self) -> None:
        self.beats: list[tuple[float, Heartbeat]] = []

    def on_beat(self, message: Message) -> None:
        self.beats.append((time.monotonic(), codec.decode(message.data, Heartbeat)))

    def said(self, since: float = 0.0) -> list[str]:
        """What the process said of the leader after that moment; "" for heartbeats of the leader itself."""
        return [beat.vitals.leader if beat.vitals else "" for at, beat in self.beats if at > since]

    def longest_gap_s(self, since: float) -> float:
        """The longest time without a heartbeat after that moment, up to now."""
        times = [since, *(at for at, _ in self.beats if at > since), time.monotonic()]
        return max(after - before for before, after in pairwise(times))

    @property
    def numbers_grow(self) -> bool:
        """Whether routers take all but a few: two connections may overtake each other when one takes over."""
        numbers = [beat.seq for _, beat in self.beats]
        taken = sum(
            number > before for number, before in zip(numbers[1:], accumulate(numbers, max), strict=False)
        )
        return taken >= len(numbers) - 1 - 4


class Leader:
    """A running `carried_leader`."""

    def __init__(self, process: Process, sender_pid: int) -> None:
        self.process, self.sender_pid = process, sender_pid

    async def do(self, what: str) -> None:
        """Sends a command and waits until it is done."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what}\n".encode())
        async with asyncio.timeout(PATIENCE_S):
            await self.process.stdout.readline()


@pytest.fixture
async def heard(nats_url: str) -> AsyncIterator[Heard]:
    bus, heard = await NatsBus.connect(nats_url, name="router"), Heard()
    await bus.subscribe(subjects.heartbeat(GROUP), heard.on_beat)
    await bus.flush()
    yield heard
    await bus.close()


@pytest.fixture
async def leader(nats_url: str, heard: Heard) -> AsyncIterator[Leader]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.kits.worker.carried_leader", nats_url, GROUP, stdin=PIPE, stdout=PIPE
    )
    assert process.stdout is not None
    pid = int(await process.stdout.readline())
    await until(lambda: heard.said()[-1:] == ["running"])
    await asyncio.sleep(0.2)
    yield Leader(process, pid)
    if process.returncode is None:
        process.kill()
    await process.communicate()  # also closes the pipes of one that has ended
    await until(lambda: not alive(pid))


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


async def test_the_interpreters_lock_delays_nothing(leader: Leader, heard: Heard) -> None:
    """A call that keeps the lock for so long, as a compiled loop does, was a gap of that length."""
    began = time.monotonic()
    await leader.do("hold 0.7")
    held_s = time.monotonic() - began
    await asyncio.sleep(0.1)
    assert held_s > 0.3
    assert heard.longest_gap_s(began) < 0.7 * held_s
    assert set(heard.said(began)) <= {"running", ""}
    ages = [beat.vitals.described_ms for at, beat in heard.beats if at > began and beat.vitals]
    assert max(ages) > 200


async def test_a_loop_that_hangs_is_reported_and_so_is_its_end(leader: Leader, heard: Heard) -> None:
    began = time.monotonic()
    await leader.do(f"wait {STALE_S + 1}")
    await until(lambda: heard.said(began)[-1:] == ["running"])
    said = heard.said(began)
    assert said.count("hung") == 2
    vitals = (beat.vitals for _, beat in heard.beats)
    first = next(one for one in vitals if one is not None and one.leader == "hung")
    assert first.described_ms > 1000 * (STALE_S - 2 * INTERVAL_S)
    assert heard.longest_gap_s(began) > 0.5  # nothing was sent while it hung
    assert heard.numbers_grow


async def test_a_frozen_leader_is_reported_sooner_than_silence_would(leader: Leader, heard: Heard) -> None:
    began = time.monotonic()
    os.kill(leader.process.pid, signal.SIGSTOP)
    await until(lambda: "frozen" in heard.said(began))
    took_s = time.monotonic() - began
    print(f"frozen: told after {1000 * took_s:.0f} ms")
    await until(lambda: heard.said(began).count("frozen") >= 2)
    await asyncio.sleep(0.5)
    assert heard.said(began).count("frozen") == 2
    thawed = time.monotonic()
    os.kill(leader.process.pid, signal.SIGCONT)
    await until(lambda: heard.said(thawed)[-1:] == ["running"])
    assert set(heard.said(thawed)) <= {"running", ""}


async def test_a_killed_leader_is_reported_at_once_and_nothing_is_left(leader: Leader, heard: Heard) -> None:
    began = time.monotonic()
    leader.process.kill()
    await until(lambda: "ended" in heard.said(began))
    print(f"ended: told after {1000 * (time.monotonic() - began):.0f} ms")
    await until(lambda: not alive(leader.sender_pid))
    assert heard.said(began)[-1] == "ended"


async def test_a_frozen_leader_that_is_killed_has_ended(leader: Leader, heard: Heard) -> None:
    os.kill(leader.process.pid, signal.SIGSTOP)
    await until(lambda: heard.said().count("frozen") == 2)
    leader.process.kill()
    await until(lambda: heard.said()[-1] == "ended")


async def test_a_clean_end_is_no_death(leader: Leader, heard: Heard) -> None:
    began = time.monotonic()
    assert leader.process.stdin is not None
    leader.process.stdin.write(b"stop\n")
    assert await asyncio.wait_for(leader.process.wait(), PATIENCE_S) == 0
    await until(lambda: not alive(leader.sender_pid))
    assert set(heard.said(began)) <= {"running", ""}


async def test_signals_to_the_whole_process_group_do_not_end_it(leader: Leader, heard: Heard) -> None:
    """As of a terminal's Ctrl-C: a leader that drains has heartbeats until its end."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(leader.sender_pid, signum)
    began = time.monotonic()
    await until(lambda: len(heard.said(began)) > 3)
    assert alive(leader.sender_pid)


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
async def test_without_the_process_the_leader_sends_itself_and_starts_another(
    leader: Leader, heard: Heard, signum: signal.Signals
) -> None:
    began = time.monotonic()
    os.kill(leader.sender_pid, signum)
    await until(lambda: "" in heard.said(began))
    await until(lambda: heard.said(began)[-1] == "running" and "" in heard.said(began))  # the next one
    assert heard.longest_gap_s(began) < GAP_S
    assert heard.numbers_grow
    assert not alive(leader.sender_pid)
    assert set(heard.said(began)) == {"running", ""}


async def test_a_process_that_is_cut_off_alone_is_made_up_for(nats_url: str, heard: Heard) -> None:
    bus = await NatsBus.connect(nats_url, name="worker/i")
    port = int(nats_url.rpartition(":")[2])
    async with TcpProxy(port) as proxy:
        options = heartbeat_process(
            nats_url=f"nats://127.0.0.1:{proxy.port}", connection="worker/i/heartbeats", instance_id="i",
            interval_s=INTERVAL_S, stale_s=30.0,
        )  # fmt: skip
        carrier = ProcessCarrier(bus, options)
        await carrier.start(beat())
        describing = asyncio.create_task(describe_forever(carrier))
        await until(lambda: heard.said()[-1:] == ["running"])
        began = time.monotonic()
        proxy.cut(refuse=True)
        await until(lambda: "" in heard.said(began))
        proxy.resume()
        await until(lambda: heard.said(began)[-1] == "running")
        assert heard.numbers_grow
        assert heard.longest_gap_s(began) < GAP_S
        assert carrier.starts == 1
        describing.cancel()
        await carrier.stop()
    await bus.close()


async def test_a_process_that_finds_no_broker_ends_with_its_leader() -> None:
    """It was left over for ever: nats-py goes on to connect after a cancellation."""
    options = heartbeat_process(
        nats_url=f"nats://127.0.0.1:{free_port()}", connection="c", instance_id="i", interval_s=INTERVAL_S,
        stale_s=1.0, connect_wait_s=60.0,
    )  # fmt: skip
    page = HeartbeatPage.create(options)
    reading, control = os.pipe()
    process = await asyncio.create_subprocess_exec(
        *module_command(MODULE), str(page.fd), str(reading), str(os.getpid()), pass_fds=(page.fd, reading)
    )
    os.close(reading)
    await asyncio.sleep(2.0)
    assert process.returncode is None
    os.close(control)
    await asyncio.wait_for(process.wait(), PATIENCE_S)
    page.close()


async def test_no_broker_is_an_error_of_the_start(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    server.start()
    bus = await NatsBus.connect(server.url, name="worker/i")
    server.stop()
    options = heartbeat_process(
        nats_url=server.url, connection="c", instance_id="i", interval_s=INTERVAL_S, stale_s=1.0
    )
    carrier = ProcessCarrier(bus, options)
    await until(lambda: not bus.connected)
    with pytest.raises(Unavailable):
        await carrier.start(beat())
    assert carrier.pid == 0
    await carrier.stop()
    await bus.close()


def beat() -> Heartbeat:
    return Heartbeat(
        group=GROUP, instance_id="i", seq=0, interval_ms=25, state="ready",
        model=ModelCard(name="demo", context_length=8), load=Load(),
    )  # fmt: skip


async def describe_forever(carrier: ProcessCarrier) -> None:
    with suppress(asyncio.CancelledError):
        while True:
            carrier.describe(beat())
            await asyncio.sleep(INTERVAL_S)
