"""The faults of `test_failover.py` while streams are read over HTTP: no stream changes."""

import pytest

from tests.kits.chaos.faults import Victim, kill_in_turn
from tests.kits.chaos.scale import scaled
from tests.kits.chaos.streams import Readers, http_client, make_bodies, stopped_late, undisturbed
from tests.kits.e2e.stack import Stack

pytestmark = pytest.mark.timeout(scaled(150, 1800))


def test_streams_over_http_survive_ranks_and_leaders(pair: Stack) -> None:
    victims: list[Victim] = scaled(["rank", "leader", "rank"], ["rank", "leader", "rank"] * 20)
    with http_client(pair.state.url) as client:
        bodies = stopped_late(client, make_bodies("demo", scaled(16, 32), scaled(96, 128)))
        expected = undisturbed(client, bodies)
        assert {one.finish[0] for one in expected} == {"stop", "length"}
        with Readers(client, bodies, expected) as readers:
            killed = kill_in_turn(pair.state.nats_urls, victims)
            readers.await_streams(len(bodies))
        print(killed, readers.streams)
    assert [one.victim for one in killed] == victims
    assert readers.streams > len(bodies)
