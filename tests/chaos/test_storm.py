"""Many clients of all kinds, while services of the stack are killed and frozen at random.

Every request ends once, in time, and with the right answer or an error. Afterwards the stack holds the same
resources as before. Retention times are set to seconds, so that the tests see resources released.
"""

import time
from pathlib import Path

import pytest

from tests.kits.chaos.figures import record
from tests.kits.chaos.scale import full, scaled
from tests.kits.chaos.storm.storm import KEYS, Outcome, Storm, shown
from tests.kits.chaos.storm.storm_faults import Faults
from tests.kits.chaos.storm.storm_stock import growth, take_when_quiet, take_when_shrunk
from tests.kits.e2e.stack import Stack

SETTINGS = {
    "RYZ_API_KEYS": ",".join(f"{key}:{tenant}" for tenant, key in KEYS.items()),
    "RYZ_RATE_LIMIT_RPS": "150",
    "RYZ_RATE_LIMIT_BURST": "300",
    "RYZ_MAX_RUNNING": "32",
    "RYZ_MAX_WAITING": "64",
    "RYZ_RETENTION_S": "8",
    "RYZ_STREAM_ATTACH_TIMEOUT_S": "3",  # longer than the default, for a busy machine
    "RYZ_KVSTATE_MAX_CONCURRENT": "4",
    "RYZ_KV_CACHE_TOKENS": "16384",
}
SEED = 20


async def weather(
    stack: Stack, model: str, *, seconds: float, visits: int, calm: int, tokens: int, ranks: bool
) -> None:
    """Runs calm traffic, the storm, and calm traffic again; compares resources after the two calm phases."""
    faults = Faults(stack, SEED, ranks=ranks)
    async with Storm(stack, model, tokens=tokens, seed=SEED) as storm:
        first = await storm.run(calm, scaled(2.5, 6.0))
        before = await take_when_quiet(stack, storm.asks)
        began = time.monotonic()
        rough = await storm.run(visits, seconds, faults, floods=scaled(2, 10))
        await take_when_quiet(stack, storm.asks)
        took_s = round(time.monotonic() - began)
        last = await storm.run(calm, scaled(2.5, 6.0))
        after = await take_when_shrunk(stack, storm.asks, before)
        print(shown([first, rough, last]), f"{len(storm.losses)} losses", sep="\n", flush=True)
    record(
        "storm_demo" if ranks else "storm_null",
        seconds=took_s,
        faults=dict(faults.counted()),
        visits=sum(one.endings.total() for one in (first, rough, last)),
        endings=dict(sorted(rough.endings.items())),
        problems=sum(len(one.problems) for one in (first, rough, last)),
        before=before.as_dict(),
        after=after.as_dict(),
        grown=growth(before, after),
    )
    assert_right(first, rough, last)
    assert rough.count("done") >= 0.3 * visits
    assert sum(one.count("rate_limited") for one in (first, rough, last)) > 0
    assert sum(one.count("overloaded") for one in (first, rough, last)) > 0
    assert len(faults.log) >= seconds / 5
    assert not growth(before, after)


def assert_right(*outcomes: Outcome) -> None:
    """Fails with the first problems if there are any."""
    problems = [text for one in outcomes for text in one.problems]
    assert not problems, f"{len(problems)} problems:\n" + "\n".join(problems[:20])


def end(stack: Stack) -> None:
    """Ends the stack and checks that no process is left."""
    stack.remember()
    assert stack.end() == 0
    assert stack.leftovers() == []


@pytest.mark.timeout(scaled(300, 1200))
async def test_a_storm_over_a_model(tmp_path: Path) -> None:
    with Stack(tmp_path, env=SETTINGS, calm=False) as stack:
        stack.await_ready()
        await weather(
            stack,
            stack.state.model,
            seconds=scaled(6.0, 300.0),
            visits=scaled(40, 1000),
            calm=scaled(15, 100),
            tokens=32,
            ranks=True,
        )
        end(stack)


@pytest.mark.skipif(not full, reason="the storm over a model stands for it in short runs; see make chaos")
@pytest.mark.timeout(1200)
async def test_a_storm_over_the_null_engine(tmp_path: Path) -> None:
    """More requests than with the demo model, and answers long enough to fill slow readers' connections."""
    settings = SETTINGS | {"RYZ_NULL_STEP_DELAY_MS": "5"}
    with Stack(tmp_path, "--engine", "null", env=settings, calm=False) as stack:
        stack.await_ready()
        await weather(
            stack,
            stack.state.model,
            seconds=300.0,
            visits=8000,
            calm=400,
            tokens=64,
            ranks=False,
        )
        end(stack)
