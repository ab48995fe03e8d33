"""Guests get no request that needs what they lack: it goes elsewhere, waits, or is refused by name."""

import pytest
from msgspec.structs import replace

from services.router.domain.decision import Assignment, Refusal, RequestFacts
from services.router.domain.groups.fleet import Fleet
from services.router.domain.groups.live_view import RESTART_S
from services.router.domain.policies import make_policy
from services.router.domain.policies.choice import choose
from services.router.incoming import guest_needs
from shared.codec import encode
from shared.messages import GenerateRequest, GuestCard, Sampling, State
from tests.kits.router.fleet import POLICIES, beat, new_fleet

GUEST = GuestCard(name="llama.cpp", lacks=["seed", "rebuilt_state"])
SEED = {"seed": "seed"}
FACTS = RequestFacts("m", "key")


def fleet_of(*, own: State | None = "ready", guests: int = 1) -> Fleet:
    fleet = new_fleet()
    if own is not None:
        one = beat(1, name="own", instance="i-own", state=own)
        fleet.observe(replace(one, model=replace(one.model, fingerprint="own")), 0.0)
    for number in range(guests):
        one = beat(1, name=f"guest{number}", instance=f"i-{number}")
        one = replace(one, guest=GUEST, model=replace(one.model, fingerprint="guest:1"))
        fleet.observe(one, 0.0)
    return fleet


def test_a_request_that_a_guest_cannot_serve_goes_to_the_other_group() -> None:
    fleet = fleet_of(guests=2)
    view = fleet.view("m", 0.0, needs=lambda: SEED)
    assert [group.name for group in view.ready] == ["own"]
    assert view.away == {"guest0": "unable", "guest1": "unable"}
    assert len(fleet.view("m", 0.0, needs=lambda: {"top_k": "top_k"}).ready) == 3


def test_what_is_needed_counts_more_than_equal_weights() -> None:
    needs = {"continuation": "resume", "rebuilt_state": "seed"}
    view = fleet_of().view("m", 0.0, weights="guest:1", needs=lambda: needs)
    assert [group.name for group in view.ready] == ["own"]


def test_a_guest_that_lost_a_stream_gets_it_back_only_if_there_is_no_other_group() -> None:
    one, two = fleet_of(), fleet_of(guests=2)
    for fleet, name in ((one, "own"), (two, "guest1")):
        assert [group.name for group in fleet.view("m", 0.0, "guest0", "guest:1").ready] == [name]
    alone = fleet_of(own=None).view("m", 0.0, "guest0", "guest:1")
    assert [group.name for group in alone.ready] == ["guest0"]


def test_needs_are_not_looked_at_where_there_are_no_guests() -> None:
    def never() -> dict[str, str]:
        raise AssertionError("asked")

    assert len(fleet_of(guests=0).view("m", 0.0, needs=never).ready) == 1


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("resumed", [False, True])
def test_without_another_group_it_is_refused_by_name(name: str, *, resumed: bool) -> None:
    needs = {"continuation": "resume", **SEED} if resumed else SEED
    view = fleet_of(own=None, guests=2).view("m", 0.0, needs=lambda: needs)
    decision = choose(replace(FACTS, resumed=resumed), view, 0.0, policy=make_policy(name))  # type: ignore[arg-type]
    assert isinstance(decision, Refusal)
    assert (decision.code, decision.reason, decision.param) == (
        "unavailable" if resumed else "invalid_request", "guest_cannot", "seed"
    )  # fmt: skip
    assert "llama.cpp" in decision.message
    assert "`seed`" in decision.message


def test_a_group_that_is_away_and_could_serve_it_is_waited_for() -> None:
    view = fleet_of(own="recovering").view("m", 0.0, needs=lambda: SEED)
    decision = choose(FACTS, view, 0.0, policy=make_policy("hybrid"))
    assert isinstance(decision, Refusal)
    assert (decision.code, decision.reason) == ("unavailable", "no_group")


def test_a_group_that_has_ended_cleanly_is_waited_for_as_long_as_a_restart_takes() -> None:
    fleet = fleet_of(own="stopped")
    for now, reason in ((RESTART_S, "no_group"), (RESTART_S + 1, "guest_cannot")):
        view = fleet.view("m", now, needs=lambda: SEED)
        decision = choose(FACTS, view, now, policy=make_policy("hybrid"))
        assert isinstance(decision, Refusal)
        assert decision.reason == reason
    assert fleet_of(own="stopped", guests=0).view("m", RESTART_S + 1).away == {"own": "stopped"}


def test_a_session_that_is_pinned_to_a_guest_goes_elsewhere_for_what_that_lacks() -> None:
    view = fleet_of().view("m", 0.0, needs=lambda: SEED)
    decision = choose(FACTS, view, 0.0, policy=make_policy("hybrid"), pinned="guest0")
    assert decision == Assignment("own", "pin_away", "own")


def test_needs_are_read_off_the_message() -> None:
    request = GenerateRequest(request_id="r", model="m", prompt="x", sampling=Sampling(seed=3))
    assert guest_needs(encode(request), adapter=False) == SEED
    assert guest_needs(b"\x81\xa1", adapter=False) == {}
