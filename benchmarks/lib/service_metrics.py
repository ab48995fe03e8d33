"""Reads what services of a stack count from their admin ports: seconds of work, times of decisions."""

import math
from collections.abc import Mapping

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.lib.measuring import BenchError

_TIMEOUT_S = 10.0
Buckets = dict[float, float]  # upper bound in seconds -> values up to there


class ServiceMetrics:
    """Values of one service at one time, by the name of the sample and its label `le`, if it has one."""

    def __init__(self, text: str) -> None:
        self._values: dict[tuple[str, str], float] = {}
        self.add(text)

    def add(self, text: str) -> None:
        """Adds the values of another service of the same kind."""
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                key = sample.name, sample.labels.get("le", "")
                self._values[key] = self._values.get(key, 0.0) + sample.value

    def value(self, name: str) -> float:
        """Return the sample, summed over its labels; 0 without one."""
        return self._values.get((name, ""), 0.0)

    def buckets(self, name: str) -> Buckets:
        """Return a histogram's cumulative counts."""
        found = {float(le): value for (known, le), value in self._values.items() if known == f"{name}_bucket"}
        return dict(sorted(found.items()))


async def read_all(pids: Mapping[str, int]) -> dict[str, ServiceMetrics]:
    """Return the metrics of all routers together, as `router`, and of each group's leader by its name.

    Raises:
        BenchError: A service is gone, has no admin port, or does not answer there.
    """
    found: dict[str, ServiceMetrics] = {}
    async with httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False) as http:
        for name, pid in pids.items():
            kind = name.partition("-")[0]
            if kind not in {"router", "worker"}:
                continue
            try:
                text = await _read(http, f"http://127.0.0.1:{_admin_port(pid)}")
            except (psutil.Error, LookupError, httpx.HTTPError) as error:
                raise BenchError(f"no metrics of {name} (process {pid}): {error!r}") from error
            key = "router" if kind == "router" else name
            if key in found:
                found[key].add(text)
            else:
                found[key] = ServiceMetrics(text)
    return found


def _admin_port(pid: int) -> int:
    """Return the only port on which a router or a leader listens. Raises `psutil.Error` or `LookupError`."""
    connections = psutil.Process(pid).net_connections("tcp4")
    ports = {int(one.laddr.port) for one in connections if one.status == psutil.CONN_LISTEN}
    if len(ports) != 1:
        raise LookupError(f"it listens on {len(ports)} ports")
    return ports.pop()


async def read_metrics(http: httpx.AsyncClient, url: str) -> ServiceMetrics:
    """Return the metrics of the service with that admin address. Raises `httpx.HTTPError`."""
    return ServiceMetrics(await _read(http, url))


async def _read(http: httpx.AsyncClient, url: str) -> str:
    answer = await http.get(f"{url}/metrics")
    return answer.raise_for_status().text


def between(before: Buckets, after: Buckets) -> Buckets:
    """Return what a histogram counted from one time to the other."""
    return {bound: count - before.get(bound, 0.0) for bound, count in after.items()}


def quantile(buckets: Buckets, share: float) -> float:
    """Return the value that this share of a histogram's values does not exceed; NaN of none.

    Values are taken as spread evenly within a bucket; the last one has no end and gives its beginning.
    """
    wanted = share * max(buckets.values(), default=0.0)
    if not wanted:
        return math.nan
    below, counted = 0.0, 0.0
    for bound, count in buckets.items():
        if count >= wanted:
            return (
                below
                if math.isinf(bound)
                else below + (bound - below) * (wanted - counted) / (count - counted)
            )
        below, counted = bound, count
    return below
