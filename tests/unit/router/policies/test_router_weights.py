"""A resumed answer goes to a group with the weights that it began with, if there is one."""

import pytest
from msgspec.structs import replace

from services.router.domain.groups.fleet import Fleet
from services.router.incoming import read
from shared.bus import Message
from shared.codec import encode
from shared.messages import GenerateRequest, ResumePoint
from tests.kits.router.fleet import beat, new_fleet


def fleet_of(**weights: str) -> Fleet:
    fleet = new_fleet()
    for name, fingerprint in weights.items():
        one = beat(1, name=name, instance=f"i-{name}")
        fleet.observe(replace(one, model=replace(one.model, fingerprint=fingerprint)), 0.0)
    return fleet


def names(fleet: Fleet, avoid: str = "", weights: str = "") -> list[str]:
    return [group.name for group in fleet.view("m", 0.0, avoid, weights).ready]


def test_a_resumed_request_goes_to_groups_with_its_weights() -> None:
    fleet = fleet_of(g0="a", g1="b", g2="b")
    assert names(fleet, weights="b") == ["g1", "g2"]
    assert fleet.view("m", 0.0, "", "b").away == {"g0": "other_weights"}
    assert names(fleet, avoid="g1", weights="b") == ["g2"]
    assert names(fleet) == ["g0", "g1", "g2"]


def test_the_group_that_had_it_is_better_than_one_with_other_weights() -> None:
    assert names(fleet_of(g0="a", g1="b"), avoid="g0", weights="a") == ["g0"]


def test_where_no_group_has_them_the_groups_say_so_themselves() -> None:
    assert names(fleet_of(g0="a", g1="b"), weights="c") == ["g0", "g1"]


@pytest.mark.parametrize(("fingerprint", "weights"), [("abc/fp16", "abc"), ("abc", "abc"), ("", "")])
def test_the_weights_are_read_off_a_request(fingerprint: str, weights: str) -> None:
    resume = ResumePoint(token_ids=[b""], next_seq=1, fingerprint=fingerprint)
    request = GenerateRequest(request_id="r", model="m", prompt="x", attempt=1, resume=resume)
    facts = read(Message("x", encode(request), "_INBOX.a.r", {}), 0.0).facts
    assert facts.weights == weights
