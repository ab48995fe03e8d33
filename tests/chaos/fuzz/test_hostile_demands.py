"""Hostile grammars, schemas, tools and variables are answered or refused by name, and harm nobody else.

What can be served is served, and validated by jsonschema, re or lark. No answer is a 5xx, the breaker stays
closed, the engine is not started again, and another caller's requests are answered as fast as before.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from threading import Event

import httpx
import pytest

from cli.models.catalogue import DEMO
from tests.kits.chaos.figures import record
from tests.kits.chaos.fleet import Metrics
from tests.kits.chaos.hostile.campaign import Campaign, Twins, ordinary_case
from tests.kits.chaos.hostile.hostile_cases import hostile_case
from tests.kits.chaos.hostile.other_caller import OtherCaller, Took, beside, quantile
from tests.kits.chaos.hostile.servable_cases import servable_case
from tests.kits.chaos.scale import full, scaled
from tests.kits.clients.served import model_here
from tests.kits.e2e.stack import Stack

pytestmark = pytest.mark.timeout(scaled(400, 14_400))
HOSTILE = scaled(57, 10_000)
SERVABLE = scaled(34, 1000)
CALM = scaled(8, 200)  # requests of the other caller with nothing beside
ORDINARY = scaled(8, 1000)  # ordinary requests for comparison
TWINS = scaled(8, 2000)  # ordinary requests of the sizes of hostile ones
SLOWER = 2.0  # at most, the other caller's p99 beside hostile requests instead of ordinary ones
ANSWER_S = 120.0
KEYS = {"hostile": "sk-hostile", "other": "sk-other"}


@pytest.fixture(scope="module")
def served() -> str:
    return model_here() if full else DEMO


@pytest.fixture(scope="module")
def stack(served: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One group of one rank: what closes it closes the model to everybody."""
    env = {
        "RYZ_API_KEYS": ",".join(f"{key}:{tenant}" for tenant, key in KEYS.items()),
        "RYZ_GRAMMAR_TIMEOUT_S": "20",  # other tests run beside this one
    }
    options = ("--model", served, "--groups", "1", "--tensor-parallel", "1")
    with Stack(tmp_path_factory.mktemp("hostile"), *options, env=env) as stack:
        yield stack.await_ready()
        assert stack.end() == 0


def milliseconds(took: list[Took], share: float) -> tuple[int, int]:
    """Returns a quantile by the clock, and of the rank's CPU time."""
    wall_s, rank_s = (quantile(times, share) for times in zip(*took, strict=True))
    return round(1000 * wall_s), round(1000 * rank_s)


@pytest.fixture
def clients(stack: Stack) -> Iterator[dict[str, httpx.Client]]:
    """The HTTP client of each tenant."""
    with ExitStack() as opened:
        yield {
            tenant: opened.enter_context(
                httpx.Client(
                    base_url=stack.state.url, headers={"Authorization": f"Bearer {key}"}, timeout=ANSWER_S
                )
            )
            for tenant, key in KEYS.items()
        }


def test_hostile_requests_harm_nobody_else(
    stack: Stack, clients: dict[str, httpx.Client], served: str
) -> None:
    other, over = OtherCaller(clients["other"], served, stack), Event()
    campaign, ordinary = (Campaign(clients["hostile"], served) for _ in range(2))
    cases = [servable_case(number) for number in range(SERVABLE)]
    cases += [hostile_case(number) for number in range(HOSTILE)]
    worker = stack.pid_of("worker-g0")
    over.set()
    other.ask(3, over)  # the first ones are slower
    alone = other.ask(CALM, over)
    calm = beside(other, ordinary.send, [ordinary_case(number) for number in range(ORDINARY)])
    loaded = beside(other, campaign.send, cases)
    twins = beside(other, Twins(clients["hostile"], served).send, enumerate(sorted(campaign.sizes)[:TWINS]))

    services = stack.status()["services"]
    routers = [one["detail"] for one in services if one["service"] == "router"]
    groups = [group for router in routers for group in router["groups"]]
    (detail,) = (one["detail"] for one in services if one["service"] == "worker")
    metrics = Metrics(detail["admin_url"])
    failures = sum(
        metrics.value("ryz_worker_engine_failures_total", kind=kind)
        for kind in ("rank_died", "rank_hung", "step_late", "rank_failed", "memory", "leader_bug")
    )
    record(
        "hostile_demands",
        model=served,
        cases=len(cases),
        problems=len(campaign.problems),
        answers=dict(sorted(campaign.seen.items())),
        confined=metrics.value("ryz_worker_confined_failures_total"),
        # alone, beside as many ordinary requests at a time, beside ordinary ones of the size of the hostile
        # ones, beside the hostile ones; by the clock, and as CPU time of the rank
        other_p50_ms=[milliseconds(one, 0.5) for one in (alone, calm, twins, loaded)],
        other_p99_ms=[milliseconds(one, 0.99) for one in (alone, calm, twins, loaded)],
        other_requests=[len(one) for one in (alone, calm, twins, loaded)],
    )
    assert ordinary.problems == []
    assert campaign.problems[:20] == []
    assert groups
    for group in groups:  # as each router sees it
        assert (group["state"], group["breaker"], group["broken_total"]) == ("ready", "closed", 0)
    assert stack.pid_of("worker-g0") == worker
    assert failures == 0
    assert campaign.seen["200"] >= SERVABLE
    assert ordinary.seen["200"] == ORDINARY
    if full:  # beside other tests the times say nothing
        assert milliseconds(loaded, 0.99)[0] <= SLOWER * milliseconds(calm, 0.99)[0]
