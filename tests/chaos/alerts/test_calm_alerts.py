"""Without a fault no alert fires, however long the stack is under load.

RYZ_ALERTS_CALM_S sets the seconds; half an hour with RYZ_CHAOS=full, and not at all in short runs.
"""

import os
import time
from pathlib import Path

import pytest

from tests.kits.alerts.light_load import LightLoad
from tests.kits.alerts.watched_stack import WatchedStack
from tests.kits.chaos.figures import record
from tests.kits.chaos.scale import scaled
from tests.kits.prometheus.programs import find_program

CALM_S = float(os.environ.get("RYZ_ALERTS_CALM_S", scaled("0", "1800")))
CLIENTS = 16

pytestmark = [
    pytest.mark.timeout(CALM_S + 180),
    pytest.mark.skipif(not CALM_S, reason="takes half an hour: RYZ_CHAOS=full, or RYZ_ALERTS_CALM_S=SECONDS"),
]


def test_a_stack_at_load_without_faults_raises_no_alert(tmp_path: Path) -> None:
    find_program("prometheus")
    seen: dict[str, float] = {}
    with WatchedStack(tmp_path, "torch") as world, world.prometheus() as prometheus:
        begin = time.monotonic()
        with LightLoad(world.stack.state.url, CLIENTS, pause_s=0.05) as load:
            while time.monotonic() < begin + CALM_S:
                for alert in prometheus.firing():
                    seen.setdefault(alert, round(time.monotonic() - begin, 1))
                time.sleep(1)
        assert not prometheus.broken_rules()
        rates = {
            "tokens_per_s": "sum(rate(ryz_worker_generation_tokens_total[1m]))",
            "tokens_over_50ms": "ryz:tokens_over_50ms:ratio_rate5m",
            "work_imbalance": "max(ryz_router_work_imbalance)",
        }
        reported = {
            name: [round(one.value, 3) for one in prometheus.query(text)] for name, text in rates.items()
        }
    record("alerts: calm", seconds=CALM_S, answered=load.answered, failed=load.failed, fired=seen, **reported)
    assert not seen
    assert load.answered > CALM_S
    assert not load.failed
