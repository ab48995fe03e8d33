"""A stack of `ryz up` whose services a Prometheus scrapes every second, and which tests may break.

Two groups belong to the stack. With `far=True` a third one reaches the broker through a proxy.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import psutil

from tests.kits.chaos.scale import scaled
from tests.kits.chaos.services import ServiceProcess, kill
from tests.kits.e2e.stack import ROOT, Stack
from tests.kits.prometheus.server import PrometheusServer, ScrapeTarget
from tests.kits.proxies.threaded import ThreadedProxy
from tests.kits.servers import RedisServer
from tests.kits.waiting import PATIENCE_S, wait_for

RULES = sorted((ROOT / "deploy" / "prometheus").glob("*.yaml"))
FAR = "g2"
# all blocks go through the store, which some faults damage
KEEP_ALL_KV = {"RYZ_KV_FETCH": "always", "RYZ_KV_FETCH_MIN_TOKENS": "16", "RYZ_KV_HOST_DIR": ""}
_SCRAPES = scaled(3, 7)  # before a fault; in full more than the shortest window of the rules has


class WatchedStack:
    """As a context manager, the stack; see the module.

    Args:
        folder: For files of all its servers.
        engine: `null` or `torch`.
        far: Whether there is a third group behind a proxy, with the null engine.

    Attributes:
        stack: As `ryz up` started it.
        redis: Its Redis.
        proxy: Between the third group and the broker.
    """

    def __init__(self, folder: Path, engine: str, *, far: bool = False) -> None:
        self.folder = folder
        self.redis = RedisServer(folder)
        self._options = (
            ("--engine", "null") if engine == "null" else ("--policy", "round_robin", "--routers", "1")
        )
        self._far = far
        self._runs = 0
        self._ends = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as ends:
            self.redis.start()
            ends.callback(self.redis.stop, kill=True)
            options = (*self._options, "--redis-url", self.redis.url)
            settings = {"RYZ_NULL_STEP_DELAY_MS": "5", **KEEP_ALL_KV}
            self.stack = ends.enter_context(
                Stack(self.folder, *options, env=settings, calm=False)
            ).await_ready()
            ends.callback(self.stack.end)
            urls = {
                one["detail"].get("group", one["service"]): (one["service"], one["detail"]["admin_url"])
                for one in self.stack.status()["services"]
            }
            urls["gateway"] = ("gateway", self.stack.state.url)
            if self._far:
                near = self.stack.state.nats_urls["worker"]
                port = near.rpartition(":")[2].partition("/")[0]
                self.proxy = ends.enter_context(ThreadedProxy(int(port)))
                far = near.replace(f":{port}", f":{self.proxy.port}")
                own = {"RYZ_ENGINE": "null", "RYZ_MODEL_NAME": "demo", "RYZ_NULL_STEP_DELAY_MS": "5"}
                self.far = ends.enter_context(ServiceProcess("worker", far, RYZ_GROUP=FAR, **own))
                urls[FAR] = ("worker", f"http://127.0.0.1:{self.far.port}")
            self.targets = [ScrapeTarget(job, url) for job, url in urls.values()]
            self.groups = 2 + self._far
            self._ends = ends.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    @contextmanager
    def prometheus(self) -> Iterator[PrometheusServer]:
        """A new Prometheus without a past, that has scraped all services for some seconds."""
        self._runs += 1
        folder = self.folder / f"prometheus-{self._runs}"
        folder.mkdir()
        with PrometheusServer(folder, self.targets, RULES) as prometheus:
            prometheus.wait_for(f"count(count_over_time(up[10s]) > {_SCRAPES}) == {len(self.targets)}", 30)
            yield prometheus

    def leaders(self) -> list[int]:
        """The processes of all leaders."""
        own = [self.stack.pid_of(f"worker-g{n}") for n in range(2)]
        return [*own, self.far.process.pid] if self._far else own

    def rank(self, group: str = "g0") -> int:
        """The process of the second rank of a group of the stack."""
        family = psutil.Process(self.stack.pid_of(f"worker-{group}")).children(recursive=True)
        ranks = [
            one
            for one in family
            if not one.children() and not any("heartbeat" in word for word in one.cmdline())
        ]
        return max(one.pid for one in ranks)

    def kill(self, name: str) -> None:
        """Kills a service of the stack; its supervisor starts it again."""
        kill(self.stack, name)

    def await_whole(self) -> None:
        """Waits until all services and groups are ready."""

        def whole() -> bool:
            groups = self.stack.status()["groups"]
            return len([one for one in groups if one["state"] == "ready"]) >= self.groups and all(
                service.ready for service in self.stack.state.services
            )

        wait_for(whole, "all is ready again", PATIENCE_S)
