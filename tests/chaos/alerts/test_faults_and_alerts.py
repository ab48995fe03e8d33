"""Each fault of the failure table raises its alert within 15 s at scrapes every second, and no other one.

That of old copies of tenants and keys waits for a minute before.

`make test` makes one of the faults; RYZ_CHAOS=full makes all, and waits until alerts are over.
"""

import math
import os
from collections.abc import Iterator

import pytest

from tests.kits.alerts.alert_faults import RANKS, SERVICES, AlertCase
from tests.kits.alerts.alert_runs import run_case
from tests.kits.alerts.watched_stack import WatchedStack
from tests.kits.chaos.figures import record
from tests.kits.chaos.scale import full, scaled
from tests.kits.prometheus.programs import find_program

pytestmark = pytest.mark.timeout(scaled(300, 600))
LAST_S, AFTER_S = scaled(0.0, 16.0), scaled(3.0, 12.0)
CALM_S = float(os.environ.get("RYZ_ALERTS_CALM_WAIT_S", "300")) if full else 0.0
SHORT = ("the leader dies",)


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedStack]:
    find_program("prometheus")  # skips before the stack is started
    with WatchedStack(tmp_path_factory.mktemp("alerts"), "null", far=full) as world:
        yield world


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedStack]:
    find_program("prometheus")
    with WatchedStack(tmp_path_factory.mktemp("ranks"), "torch") as world:
        yield world


@pytest.mark.parametrize(
    "case", [case for case in SERVICES if full or case.row in SHORT], ids=lambda case: case.row
)
def test_faults_of_services(services: WatchedStack, case: AlertCase) -> None:
    check(services, case)


@pytest.mark.skipif(not full, reason="one fault is enough for short runs: RYZ_CHAOS=full")
@pytest.mark.parametrize("case", RANKS, ids=lambda case: case.row)
def test_faults_of_ranks(ranks: WatchedStack, case: AlertCase) -> None:
    check(ranks, case)


def check(world: WatchedStack, case: AlertCase) -> None:
    run = run_case(world, case, last_s=LAST_S, after_s=AFTER_S, calm_s=CALM_S)
    record(f"alert: {case.row}", line=run.line(), fired_s={k: round(v, 1) for k, v in run.fired_s.items()})
    assert run.fired_s.get(case.alert, math.inf) <= case.within_s, run
    assert not run.others, run
