"""A stack whose Redis is behind a proxy, and conversations that change the group with every turn."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import httpx
import redis
from prometheus_client.parser import text_string_to_metric_families

from tests.kits.e2e.stack import Stack
from tests.kits.proxies.threaded import ThreadedProxy
from tests.kits.servers import RedisServer
from tests.kits.waiting import wait_for

TURNS = ("My name is {name}.", "What is my name?", "Tell me about Python.", "What is my name?") * 2
KEYS = {"calm": "key-of-calm", "rough": "key-of-rough"}  # tenants share no blocks: the oracle warms no cache
TURN_S = 20.0  # for one turn: 0.1 s without a fault, five on a busy machine; a request may take 60 s


@dataclass(frozen=True, slots=True)
class Metrics:
    """A service's metrics, read over HTTP as Prometheus does."""

    url: str

    def value(self, name: str, **labels: str) -> float:
        """The value of one series; 0 if it does not exist yet or the service does not answer."""
        try:
            text = httpx.get(f"{self.url}/metrics", timeout=5).text
        except httpx.TransportError:
            return 0.0
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return sample.value
        return 0.0


class Said(NamedTuple):
    """What a fault must not change: the length of the history, in tokens, and the answer."""

    prompt_tokens: int
    tokens: list[str]


@dataclass(slots=True)
class Talk:
    """A conversation of one tenant; the client sends new messages only, and the session has the history."""

    client: httpx.Client
    session_id: str
    name: str
    temperature: float
    turns: int = 0
    groups: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)

    def next(self) -> Said:
        """Runs one more turn."""
        text = TURNS[self.turns].format(name=self.name)
        self.turns += 1
        answer = self.client.post(
            "/v1/chat/completions",
            json={
                "model": "demo",
                "temperature": self.temperature,
                "seed": 11,
                "max_tokens": 20,
                "logprobs": True,
                "messages": [{"role": "user", "content": text}],
            },
            headers={"X-Session-Id": self.session_id, "X-Session-Mode": "append"},
        )
        assert answer.status_code == 200, (self, answer.text)
        assert answer.elapsed.total_seconds() < TURN_S, self
        self.groups.append(answer.headers["x-ryz-group"])
        self.sources.append(answer.headers.get("x-ryz-kv", ""))
        reply = answer.json()
        tokens = [one["token"] for one in reply["choices"][0]["logprobs"]["content"]]
        return Said(reply["usage"]["prompt_tokens"], tokens)


class Chaos:
    """A stack with methods that inject faults; `metrics` are by service, for workers by group."""

    def __init__(self, stack: Stack, redis: RedisServer, proxy: ThreadedProxy) -> None:
        self.stack, self.redis, self.proxy = stack, redis, proxy
        self._clients: dict[str, httpx.Client] = {}
        services = stack.status()["services"]
        self.metrics = {
            one["detail"].get("group", one["service"]): Metrics(one["detail"]["admin_url"])
            for one in services
        }

    def client_of(self, tenant: str) -> httpx.Client:
        """The HTTP client of a tenant."""
        if tenant not in self._clients:
            headers = {"Authorization": f"Bearer {KEYS[tenant]}"}
            self._clients[tenant] = httpx.Client(base_url=self.stack.state.url, headers=headers, timeout=60)
        return self._clients[tenant]

    @contextmanager
    def no_redis(self) -> Iterator[None]:
        """Kills Redis; on exit it is started again, empty."""
        self.redis.stop(kill=True)
        try:
            yield
        finally:
            self.redis.start()

    @contextmanager
    def slow_redis(self, delay_s: float) -> Iterator[None]:
        """Delays everything sent to or from Redis."""
        self.proxy.slow(delay_s)
        try:
            yield
        finally:
            self.proxy.slow(0)

    @contextmanager
    def stalled_redis(self) -> Iterator[None]:
        """Redis accepts connections and sends nothing."""
        self.proxy.stall()
        try:
            yield
        finally:
            self.proxy.resume()

    @contextmanager
    def no_kvstate(self) -> Iterator[None]:
        """Kills kvstate; the supervisor restarts it, possibly after this context ends."""
        pid = self.stack.pid_of("kvstate")
        os.kill(pid, signal.SIGKILL)
        yield
        wait_for(lambda: self.stack.pid_of("kvstate") != pid, "kvstate is started again")

    @contextmanager
    def full_redis(self) -> Iterator[None]:
        """Sets Redis's memory limit so low that it refuses all writes, whatever it evicts."""
        with self.keyspace() as keyspace:
            keyspace.config_set("maxmemory", 1)
            try:
                yield
            finally:
                keyspace.config_set("maxmemory", 0)

    def close(self) -> None:
        """Closes the clients' connections."""
        for client in self._clients.values():
            client.close()

    def session(self, session_id: str) -> dict[str, Any]:
        """A session as `/v1/sessions` shows it; empty if it is not stored or the store is unavailable."""
        answer = self.client_of("rough").get(f"/v1/sessions/{session_id}")
        if answer.status_code in {404, 503}:
            return {}
        found: dict[str, Any] = answer.json()
        return found

    def keyspace(self) -> redis.Redis:
        """A client of Redis that bypasses the proxy."""
        return redis.Redis.from_url(self.redis.url)


class Story:
    """Sessions whose turns alternate between the groups, and their expected answers.

    Round-robin routing and an odd number of sessions, run one after another, make each of them alternate.
    """

    def __init__(self, chaos: Chaos, label: str, names: Sequence[str]) -> None:
        assert len(names) % 2
        self.talks: list[Talk] = []
        self._alternates = True
        self._again = self._moved = 0  # later turns, and those of them on the other group
        self._expected: list[list[Said]] = []
        for number, name in enumerate(names):
            session_id, temperature = f"{label}-{name}", number % 2
            calm = Talk(chaos.client_of("calm"), session_id, name, temperature)
            self._expected.append([calm.next() for _ in TURNS])
            self.talks.append(Talk(chaos.client_of("rough"), session_id, name, temperature))

    def turn(self, times: int = 1) -> None:
        """Runs one more turn of each session and compares its tokens with those of the undisturbed run."""
        for _ in range(times):
            for talk, expected in zip(self.talks, self._expected, strict=True):
                assert talk.next() == expected[talk.turns - 1], talk
                if self._alternates and talk.turns > 1:
                    self._again += 1
                    self._moved += talk.groups[-1] != talk.groups[-2]
                    # a request that is published twice takes two of the router's turns
                    assert 2 * self._moved >= self._again - 1, talk

    @contextmanager
    def all_at_once(self) -> Iterator[Callable[[], bool]]:
        """Runs all turns but the last of all sessions, a thread each; yields whether any is still running."""
        self._alternates = False
        with ThreadPoolExecutor(len(self.talks)) as pool:
            futures = [
                pool.submit(self._take_turn, talk, expected)
                for talk, expected in zip(self.talks, self._expected, strict=True)
            ]
            yield lambda: not all(one.done() for one in futures)
            for one in futures:
                one.result()

    @staticmethod
    def _take_turn(talk: Talk, expected: list[Said]) -> None:
        while talk.turns < len(expected) - 1:
            assert talk.next() == expected[talk.turns - 1], talk

    def sources(self) -> list[str]:
        """The KV source of each session's last turn."""
        return [talk.sources[-1] for talk in self.talks]
