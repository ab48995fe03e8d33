"""Pins: the group that they select, when the policy decides instead, and how lists and changes combine."""

import pytest
from prometheus_client import CollectorRegistry

from services.router.domain.decision import Assignment, FleetView, GroupView, Refusal, RequestFacts
from services.router.domain.pins import PinTable
from services.router.domain.policies import PolicyName, make_policy
from services.router.domain.policies.choice import choose_pinned
from services.router.domain.rendezvous import preferred
from services.router.metrics import RouterMetrics
from services.router.session_events import PinSync
from shared import subjects
from shared.bus import Message
from shared.codec import decode, encode
from shared.messages import PinList, Pinned, PinPage
from tests.kits.memory_bus import MemoryBus
from tests.kits.router.fleet import POLICIES

FREE, FULL = GroupView("g0", capacity=4), GroupView("g1", running=2, waiting=2, capacity=4, wait_s=3.0)
FACTS = RequestFacts("m", "s-1", 10)


@pytest.mark.parametrize("name", POLICIES)
def test_a_pin_is_stronger_than_every_policy(name: PolicyName) -> None:
    view = FleetView("m", (FREE, GroupView("g1", running=3, waiting=9, capacity=16, wait_s=9.0)))
    home = preferred("s-1", view.ready).name
    decision = choose_pinned("g1", make_policy(name), FACTS, view, 0.0)
    assert decision == Assignment("g1", "pinned", home)


def test_a_full_pinned_group_refuses() -> None:
    decision = choose_pinned("g1", make_policy("hybrid"), FACTS, FleetView("m", (FREE, FULL)), 0.0)
    assert isinstance(decision, Refusal)
    assert decision.code == "overloaded"
    assert decision.error().data == {"reason": "pin_full", "retry_after_s": 3.0}
    assert "'g1'" in decision.message
    assert "unpin" in decision.message


@pytest.mark.parametrize("pinned", ["g2", "never-heard-of"])
def test_a_pinned_group_that_is_away_leaves_the_choice_to_the_policy(pinned: str) -> None:
    view = FleetView("m", (FREE,), {"g2": "lost"})
    decision = choose_pinned(pinned, make_policy("hybrid"), FACTS, view, 0.0)
    assert decision == Assignment("g0", "pin_away", "g0")
    refused = choose_pinned(pinned, make_policy("hybrid"), FACTS, FleetView("m", (), {"g2": "lost"}), 0.0)
    assert isinstance(refused, Refusal)
    assert refused.reason == "no_group"


def test_pins_change_and_are_freed() -> None:
    pins = PinTable(10)
    assert pins.set_pin("t", "s", "g0")
    assert (pins.group_of("t", "s"), pins.group_of("other", "s"), pins.group_of("t", "")) == ("g0", "", "")
    pins.set_pin("t", "s", "")
    assert pins.group_of("t", "s") == ""
    assert len(pins) == 0


def test_what_was_reported_while_the_list_came_is_newer() -> None:
    pins = PinTable(10)
    pins.set_pin("t", "old", "g0")
    pins.start_list()
    pins.set_pin("t", "freed", "")
    pins.set_pin("t", "bound", "g2")
    assert pins.replace_list([("t", "freed", "g0"), ("t", "bound", "g1"), ("t", "listed", "g1")])
    groups = {name: pins.group_of("t", name) for name in ("old", "freed", "bound", "listed")}
    assert groups == {"old": "", "freed": "", "bound": "g2", "listed": "g1"}


def test_pins_are_bounded() -> None:
    pins = PinTable(2)
    assert [pins.set_pin("t", name, "g0") for name in "abc"] == [True, True, False]
    assert pins.set_pin("t", "a", "g1")
    assert not pins.replace_list([("t", name, "g0") for name in "xyz"])
    assert len(pins) == 2


async def test_all_pages_are_asked_for_and_a_failure_keeps_what_is_known() -> None:
    bus, pins = MemoryBus(), PinTable(100)
    pages = {
        "": PinPage(pins=[Pinned(tenant="t", session_id="a", group="g0")], cursor="next"),
        "next": PinPage(pins=[Pinned(tenant="t", session_id="b", group="g1")]),
    }

    async def answer(message: Message) -> None:
        await bus.publish(message.reply, encode(pages[decode(message.data, PinList).cursor]))

    kvstate = await bus.subscribe(subjects.PINS, answer)
    pin_sync = PinSync(bus, pins, RouterMetrics(CollectorRegistry(), "hybrid"), refresh_s=30.0)
    assert await pin_sync.load_pins()
    assert (pins.group_of("t", "a"), pins.group_of("t", "b")) == ("g0", "g1")
    await kvstate.unsubscribe()
    assert not await pin_sync.load_pins()
    assert len(pins) == 2
