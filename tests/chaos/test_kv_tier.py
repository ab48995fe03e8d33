"""Faults of Redis and kvstate, and damaged KV bytes, cost only time.

During each fault, sessions continue with every turn on the group that did not run the one before, and the
answers have the same tokens as without a fault.
"""

import time

import pytest

from shared.kv_hash import PREFIX_PATTERN
from tests.kits.chaos.fleet import Chaos, Metrics, Story, Talk
from tests.kits.chaos.scale import scaled
from tests.kits.waiting import wait_for
from training.words import HELD_OUT_NAMES

LEADERS_UP, TIER_UP, SESSIONS_UP = "ryz_worker_kv_store_up", "ryz_kvstate_tier_up", "ryz_kvstate_store_up"


class Lights:
    """The metrics that show whether the store is available: one of each leader, and two of kvstate."""

    def __init__(self, chaos: Chaos) -> None:
        kvstate = chaos.metrics["kvstate"]
        self._all: list[tuple[Metrics, str]] = [
            (chaos.metrics["g0"], LEADERS_UP),
            (chaos.metrics["g1"], LEADERS_UP),
            (kvstate, TIER_UP),
            (kvstate, SESSIONS_UP),
        ]

    def read(self) -> list[float]:
        return [metrics.value(name) for metrics, name in self._all]

    def wait(self, value: float) -> None:
        try:
            wait_for(lambda: self.read() == [value] * 4, f"all show {value:g}")
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.read()}") from None


@pytest.fixture
def lights(chaos: Chaos) -> Lights:
    lights = Lights(chaos)
    lights.wait(1)
    return lights


def stored(chaos: Chaos, story: Story) -> None:
    """Waits until the store has all turns and some KV of each session."""
    for talk in story.talks:

        def has_all(talk: Talk = talk) -> bool:
            shown = chaos.session(talk.session_id)
            return shown.get("turns") == talk.turns and shown["blocks"] > 0

        try:
            wait_for(has_all, f"{talk.session_id} is stored")
        except AssertionError as error:
            shown = chaos.session(talk.session_id)
            raise AssertionError(f"{error}; of {talk.turns} turns: {shown}") from None


def test_without_trouble_kv_is_fetched(chaos: Chaos, lights: Lights) -> None:
    story = Story(chaos, "calm", HELD_OUT_NAMES[:3])
    for _ in range(4):
        story.turn()
        stored(chaos, story)
    assert "fetch" in story.sources()


def test_redis_killed_and_empty_again(chaos: Chaos, lights: Lights) -> None:
    story = Story(chaos, "killed", HELD_OUT_NAMES[3:8])
    story.turn(2)
    with chaos.no_redis():
        story.turn(3)
        lights.wait(0)
    lights.wait(1)
    story.turn(2)
    stored(chaos, story)


def test_redis_restarted_empty_between_two_turns(chaos: Chaos, lights: Lights) -> None:
    story = Story(chaos, "restarted", HELD_OUT_NAMES[8:11])
    story.turn(2)
    stored(chaos, story)
    with chaos.no_redis():
        pass
    story.turn(3)
    lights.wait(1)
    story.turn()
    stored(chaos, story)


@pytest.mark.parametrize(("delay_s", "first"), scaled([(0.5, 37)], [(0.25, 11), (0.5, 37)]))
def test_a_slow_redis(chaos: Chaos, lights: Lights, delay_s: float, first: int) -> None:
    story = Story(chaos, "slow", HELD_OUT_NAMES[first : first + 3])
    story.turn(2)
    with chaos.slow_redis(delay_s):
        story.turn(3)
        lights.wait(0)
    lights.wait(1)
    story.turn(2)
    stored(chaos, story)


def test_a_redis_that_stalls(chaos: Chaos, lights: Lights) -> None:
    story = Story(chaos, "stalled", HELD_OUT_NAMES[14:17])
    story.turn(2)
    with chaos.stalled_redis():
        story.turn(3)
        lights.wait(0)
    lights.wait(1)
    story.turn(2)
    stored(chaos, story)


def test_a_full_redis(chaos: Chaos, lights: Lights) -> None:
    kvstate, story = chaos.metrics["kvstate"], Story(chaos, "full", HELD_OUT_NAMES[17:20])
    story.turn()
    stored(chaos, story)
    before = kvstate.value("ryz_kvstate_blocks_evicted_total", reason="memory")
    with chaos.full_redis():
        story.turn(4)
        wait_for(lambda: kvstate.value("ryz_kvstate_tier_full") == 1, "kvstate sees it")
        assert kvstate.value("ryz_kvstate_blocks_evicted_total", reason="memory") > before
    lights.wait(1)
    story.turn(2)
    stored(chaos, story)


def test_kvstate_killed(chaos: Chaos, lights: Lights) -> None:
    story = Story(chaos, "orphaned", HELD_OUT_NAMES[20:23])
    story.turn(2)
    for _ in range(scaled(1, 3)):
        with chaos.no_kvstate():
            story.turn()
    lights.wait(1)
    story.turn(2)
    stored(chaos, story)


def test_damaged_bytes(chaos: Chaos, lights: Lights) -> None:
    story = Story(chaos, "damaged", HELD_OUT_NAMES[23:26])
    story.turn(2)
    stored(chaos, story)
    groups = [chaos.metrics[name] for name in ("g0", "g1")]
    before = sum(one.value("ryz_worker_kv_corrupt_blocks_total") for one in groups)
    with chaos.keyspace() as keyspace:
        sound = {key: keyspace.hgetall(key) for key in keyspace.scan_iter(PREFIX_PATTERN)}
        for key, fields in sound.items():
            for name, value in fields.items():
                middle = len(value) // 2
                keyspace.hset(key, name, value[:middle] + bytes([value[middle] ^ 1]) + value[middle + 1 :])
        story.turn(4)
        found = sum(one.value("ryz_worker_kv_corrupt_blocks_total") for one in groups) - before
        assert found > 0
        # both groups may have found the same block damaged, hence the factor of 2
        wait_for(
            lambda: 2 * sum(keyspace.hgetall(key) == sound[key] for key in sound) >= found,
            "what was found damaged is written anew",
        )
    lights.wait(1)


def test_one_trouble_after_another_while_everybody_talks(chaos: Chaos, lights: Lights) -> None:
    story = Story(chaos, "load", HELD_OUT_NAMES[26:37])
    story.turn()  # a session's first turn needs the store to know that it is new
    stored(chaos, story)
    with story.all_at_once() as talking:
        while talking():
            for trouble in (
                chaos.no_redis(),
                chaos.slow_redis(0.25),
                chaos.stalled_redis(),
                chaos.full_redis(),
                chaos.no_kvstate(),
            ):
                with trouble:
                    time.sleep(0.5)
                time.sleep(0.3)
    lights.wait(1)
    story.turn()  # also for sessions whose turns ended before the last loss of Redis
    stored(chaos, story)
