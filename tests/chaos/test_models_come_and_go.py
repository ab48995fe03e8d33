"""Three models of which two fit are asked for at random and in bursts, while what loads them is killed.

Each request ends in one answer or one honest refusal; nothing is lost and nothing hangs; memory stays within
its limit; and no group is ended in mid-work but to give a model its turn.
"""

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from cli.models.store import models_dir
from cli.stack.agent.group_memory import process_bytes
from tests.kits.chaos.model_traffic import ModelTraffic, in_bursts, in_random_order
from tests.kits.chaos.scale import full, scaled
from tests.kits.chaos.services import START_S
from tests.kits.e2e.models_stack import models_stack
from tests.kits.e2e.stack import Stack
from tests.kits.waiting import wait_for

pytestmark = pytest.mark.timeout(scaled(400, 3600))
REQUESTS, KILLS = scaled(60, 500), scaled(1, 10)  # of each kind of traffic
MODELS = ("smollm2", "gemma", "demo") if full else ("small", "middle", "large")
SOURCES = ("smollm2-135m", "gemma3-270m", "demo") if full else ("demo", "demo", "demo")
MEMORY_GIB = scaled(2.3, 3.6)  # two of the three fit
ANSWERED = 0.95
VICTIMS = ("controller", "gateway", "group")
OTHERS = ("nats", "redis", "redis-kv", "kvstate")  # what the controller needs to act, and groups to end


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    if full and not (models_dir() / "gemma3-270m.gguf").exists():
        pytest.skip("`ryz models pull gemma3-270m` brings the second model")
    folder = tmp_path_factory.mktemp("models-storm")
    tables = [
        f'[[models]]\nname = "{name}"\nsource = "{source}"\nload = "demand"\nkv_cache_tokens = 8192\n'
        for name, source in zip(MODELS, SOURCES, strict=True)
    ]
    with models_stack(folder, "\n".join(tables), "--memory", str(MEMORY_GIB)) as stack:
        yield stack


class MemorySamples:
    """Adds up the memory (PSS) of all processes of a stack, again and again."""

    def __init__(self, stack: Stack) -> None:
        self.most_bytes = 0
        self.count = 0
        self._supervisor = psutil.Process(stack.state.pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End."""
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(0.5):
            total = 0
            for one in (self._supervisor, *self._supervisor.children(recursive=True)):
                with suppress(OSError, psutil.Error):
                    total += process_bytes(one.pid)
            self.most_bytes = max(self.most_bytes, total)
            self.count += 1


class Killer:
    """Kills these in turn: `controller`, `group`, or services by name."""

    def __init__(self, stack: Stack, rng: random.Random, victims: Sequence[str]) -> None:
        self.killed: Counter[str] = Counter()
        self.victims = victims
        self._stack = stack
        self._rng = rng

    def kill_next(self) -> None:
        """Kill what has been killed least often."""
        kind = min(self.victims, key=lambda one: self.killed[one])
        name = self._name_of(kind)
        if name is None:  # no group runs at this moment
            return
        with suppress(StopIteration, ProcessLookupError):
            os.kill(self._stack.pid_of(name), signal.SIGKILL)
            self.killed[kind] += 1

    def _name_of(self, kind: str) -> str | None:
        if kind not in {"controller", "group"}:
            return kind
        services = self._stack.state.services
        if kind == "group":
            groups = [one.name for one in services if one.model and one.pid]
            return self._rng.choice(groups) if groups else None
        pids = {one["pid"] for one in self._stack.status()["services"] if _leads(one)}
        return next((one.name for one in services if one.pid in pids), None)


def _leads(service: dict[str, object]) -> bool:
    detail = service.get("detail")
    return isinstance(detail, dict) and bool(detail.get("models_lease", {}).get("held"))


def oom_kills() -> int:
    text = Path("/proc/vmstat").read_text(encoding="ascii")
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("oom_kill ")))


@pytest.mark.parametrize(
    ("order", "victims"),
    [
        pytest.param(in_random_order, VICTIMS, id="random"),
        pytest.param(in_bursts, OTHERS, id="broker-and-stores"),
        *([pytest.param(in_bursts, VICTIMS, id="bursts")] if full else []),
    ],
)
def test_no_request_is_lost_while_models_come_and_go(
    stack: Stack, order: Callable[[Sequence[str], int, random.Random], list[str]], victims: Sequence[str]
) -> None:
    rng = random.Random(7)
    ooms, samples = oom_kills(), MemorySamples(stack)
    most = 200 * REQUESTS  # enough for all kills
    traffic = ModelTraffic(stack.state.url, order(MODELS, most, rng), rng, scaled((4, 12), (8, 48)))
    killer = Killer(stack, rng, victims)
    traffic.start()
    pause_s = scaled(4.0, 6.0)
    while traffic.running and min(killer.killed[kind] for kind in victims) < KILLS:
        time.sleep(pause_s)
        killer.kill_next()
    wait_for(lambda: len(traffic.visits) >= REQUESTS, "enough requests", scaled(200, 1500))
    traffic.finish()
    wait_for(lambda: not traffic.running, "all requests have ended", scaled(200, 1500))
    samples.close()
    print(traffic.tally())
    peak = f"at most {samples.most_bytes / 2**30:.2f} GiB in {samples.count} samples"
    print(f"killed {dict(killer.killed)}; {peak}")
    assert min(killer.killed[kind] for kind in victims) >= KILLS
    assert [one for one in traffic.visits if not (one.answered or one.refused)] == []
    assert sum(one.answered for one in traffic.visits) >= ANSWERED * len(traffic.visits)
    assert oom_kills() == ooms
    assert samples.most_bytes < MEMORY_GIB * 2**30
    wait_for(lambda: _all_idle(stack), "the stack is calm", START_S)


def _all_idle(stack: Stack) -> bool:
    groups = stack.status()["groups"]
    return all(not one.get("running") and not one.get("waiting") for one in groups)


def test_no_group_was_ended_in_mid_work_but_to_give_a_model_its_turn(stack: Stack) -> None:
    stops = [event for event in _actions(stack) if event["action"] == "stop"]
    print(Counter((event["action"], event["reason"]) for event in _actions(stack)))
    assert stops
    for event in stops:
        if event["reason"] != "rotated":
            assert (event["busy"], event["wanted"]) == (0, 0), event


def _actions(stack: Stack) -> list[dict[str, object]]:
    found = []
    for log in sorted(stack.state_dir.logs.glob("router*.log*")):
        for line in log.read_text(errors="replace").splitlines():
            if '"model action"' in line:
                found.append(json.loads(line))
    return found
