"""Redis is killed while a group dies: KV is recomputed instead of fetched, and the answers are the same."""

import pytest

from tests.kits.chaos.faults import Victim, kill_one_by_one
from tests.kits.chaos.fleet import KEYS, Chaos
from tests.kits.chaos.scale import scaled
from tests.kits.chaos.services import await_idle
from tests.kits.chaos.streams import Readers, http_client, make_bodies, undisturbed
from tests.kits.waiting import wait_for

pytestmark = pytest.mark.timeout(scaled(300, 900))
LEADERS_UP = "ryz_worker_kv_store_up"


def test_redis_killed_while_a_group_dies(chaos: Chaos) -> None:
    """Another tenant records the expected answers, so that their blocks are not reused."""
    url = chaos.stack.state.url
    victims: list[Victim] = scaled(["rank", "leader"], ["rank", "leader"] * 8)
    bodies = make_bodies("demo", 12, 96)
    with http_client(url, key=KEYS["calm"]) as calm, http_client(url, key=KEYS["rough"]) as rough:
        expected = undisturbed(calm, bodies)
        with Readers(rough, bodies, expected) as readers:
            for number, victim in enumerate(victims):
                with chaos.no_redis():
                    kill_one_by_one(chaos.stack.state.nats_urls, [victim], seed=number)
                    readers.await_streams(len(bodies))
        print(readers.streams)
    for group in ("g0", "g1"):
        wait_for(
            lambda group=group: chaos.metrics[group].value(LEADERS_UP) == 1,  # type: ignore[misc]
            f"{group} uses Redis again",
            20,
        )
    await_idle(chaos.stack, groups=2)
