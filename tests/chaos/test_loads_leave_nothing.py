"""A model is loaded and unloaded again and again beside traffic for another one: nothing is left behind."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
import redis

from cli.stack.host.kv_pool import DIRECTORY
from services.kvstate.domain import keys
from tests.kits.chaos.scale import scaled
from tests.kits.e2e.models_stack import models_stack
from tests.kits.e2e.stack import Stack
from tests.kits.waiting import wait_for

pytestmark = pytest.mark.timeout(scaled(300, 1200))
ROUNDS = scaled(4, 50)
ROLES = (keys.LEASE_PREFIX, keys.SWEEPER)
WARM_ROUNDS = 2  # caches and pools of connections fill
MODELS = """
[[models]]
name = "steady"
source = "demo"

[[models]]
name = "guest"
source = "demo"
load = "demand"
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("loads")
    with models_stack(folder, MODELS) as stack:
        yield stack


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a stack holds while `guest` is unloaded.

    Attributes:
        descriptors: Open files of each service that stays, the supervisor included.
        threads: Of the same, but the broker.
        bytes: Anonymous memory of the same, which does not depend on who else has a page.
        processes: Of the whole stack.
        connections: Sockets of the broker.
        shared: Files in shared memory with KV of groups.
        keys: Of both stores, without those that say which service does something now: these come and go.
    """

    descriptors: dict[str, int]
    threads: dict[str, int]
    bytes: dict[str, int]
    processes: int
    connections: int
    shared: int
    keys: list[str]


def anonymous_bytes(pid: int) -> int:
    """The anonymous pages of a process that are in memory, those that it shares with a fork included."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


def holdings(stack: Stack) -> Holdings:
    state = stack.state
    lasting = {one.name: psutil.Process(one.pid) for one in state.services if one.name != "worker-g0"}
    lasting["supervisor"] = psutil.Process(state.pid)
    stores = [
        redis.Redis.from_url(url, decode_responses=True) for url in (state.redis_url, state.kv_redis_url)
    ]
    return Holdings(
        descriptors={name: one.num_fds() for name, one in lasting.items()},
        # the broker's runtime starts threads as it likes
        threads={name: one.num_threads() for name, one in lasting.items() if name != "nats"},
        bytes={name: anonymous_bytes(one.pid) for name, one in lasting.items()},
        processes=len(lasting["supervisor"].children(recursive=True)),
        connections=len(lasting["nats"].net_connections("tcp")),
        shared=len(list(Path(psutil.Process(stack.pid_of("worker-g0")).environ()[DIRECTORY]).iterdir())),
        keys=sorted(key for store in stores for key in store.scan_iter() if not key.startswith(ROLES)),
    )


class Traffic:
    """Asks `steady` all the time; each answer has to be whole."""

    def __init__(self, url: str) -> None:
        self.answers = 0
        self.problems: list[str] = []
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def close(self) -> None:
        """End."""
        self._stop.set()
        self._thread.join()

    def _ask(self) -> None:
        body = {"model": "steady", "prompt": "Hello", "max_tokens": 8}
        with httpx.Client(base_url=self._url, timeout=60) as http:
            while not self._stop.wait(0.02):
                answer = http.post("/v1/completions", json=body)
                self.answers += 1
                if answer.status_code != 200:
                    self.problems.append(answer.text)


def test_loads_and_unloads_leave_nothing(stack: Stack) -> None:
    traffic = Traffic(stack.state.url)
    try:
        with httpx.Client(base_url=stack.state.url, timeout=120) as http:
            for _ in range(WARM_ROUNDS):
                _load_and_unload(http)
            before = _settled(stack)
            began = time.monotonic()
            for _ in range(ROUNDS):
                _load_and_unload(http)
            took_s = time.monotonic() - began
            after = _settled(stack)
    finally:
        traffic.close()
    grown = {name: after.bytes[name] - size for name, size in before.bytes.items()}
    print(f"{ROUNDS} loads and unloads in {took_s:.0f} s beside {traffic.answers} answers")
    print({name: f"{size / 2**20:+.1f} MiB" for name, size in grown.items()})
    assert traffic.problems == []
    assert after.processes == before.processes
    assert after.shared == before.shared
    assert after.keys == before.keys
    assert after.connections == before.connections
    for name, number in before.threads.items():  # a pool of a few threads fills when two calls meet
        assert after.threads[name] <= number + 2, (name, number, after.threads[name])
    for name, number in before.descriptors.items():
        assert after.descriptors[name] <= number + 2, (name, number, after.descriptors[name])
    for name, size in grown.items():
        assert size < 8 * 2**20 + ROUNDS * 2**16, (name, size)


def _load_and_unload(http: httpx.Client) -> None:
    loaded = http.post("/v1/manage/models/guest/load?wait=60")
    assert loaded.status_code == 200, loaded.text
    answer = http.post("/v1/completions", json={"model": "guest", "prompt": "Hello", "max_tokens": 8})
    assert answer.status_code == 200, answer.text
    unloaded = http.post("/v1/manage/models/guest/unload?wait=60")
    assert unloaded.status_code == 200, unloaded.text


def _settled(stack: Stack) -> Holdings:
    """What is held once the unloaded group's processes are gone, which are ended a moment after it."""
    wait_for(lambda: all(one.model != "guest" for one in stack.state.services), "the guest is gone")
    time.sleep(scaled(2.0, 5.0))
    return holdings(stack)
