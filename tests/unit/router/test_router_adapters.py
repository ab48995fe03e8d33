"""Which model and adapter a name means, and which groups are preferred for an adapter."""

import pytest

from services.router.domain.adapters import Meant, resolve
from services.router.domain.decision import Assignment, FleetView, GroupView, Refusal, RequestFacts
from services.router.domain.policies import PolicyName, make_policy
from services.router.domain.policies.base import adapter_s
from services.router.domain.policies.choice import choose
from services.router.domain.policies.costs import Costs
from shared.adapters.register import AdapterRegister
from shared.messages import Adapter, AdapterChanged
from tests.kits.router.fleet import beat, new_fleet

A, B = "a" * 32, "b" * 32
MODELS = frozenset({"m", "qwen:0.5b"})


def adapter(name: str = "fr", fingerprint: str = A, base: str = "m") -> Adapter:
    return Adapter(
        name=name, base=base, source=f"/x/{name}", fingerprint=fingerprint, rank=8, num_bytes=1_000_000
    )


def register(*adapters: Adapter, version: int = 1) -> AdapterRegister:
    made = AdapterRegister()
    made.replace_all(adapters, version)
    return made


def meant(model: str, known: AdapterRegister, **facts: object) -> Meant | Refusal:
    return resolve(RequestFacts(model, "key", **facts), known, MODELS.__contains__)  # type: ignore[arg-type]


def test_a_name_with_a_colon_is_the_base_with_its_adapter() -> None:
    found = meant("m:fr", register(adapter()), weights=f"w+{A}")
    assert isinstance(found, Meant)
    assert found.adapter == adapter()
    facts = found.facts
    assert (facts.model, facts.adapter, facts.adapter_bytes, facts.weights) == ("m", A, 1_000_000, "w")


def test_a_model_that_is_served_under_the_name_wins_over_an_adapter() -> None:
    known = register(adapter("0.5b", base="qwen"))
    assert meant("qwen:0.5b", known) == Meant(RequestFacts("qwen:0.5b", "key"))
    assert meant("m", known) == Meant(RequestFacts("m", "key"))


def test_an_adapter_of_a_model_with_a_colon_in_its_name() -> None:
    found = meant("qwen:0.5b:fr", register(adapter(base="qwen:0.5b")))
    assert isinstance(found, Meant)
    assert found.facts.model == "qwen:0.5b"


def test_an_unknown_adapter_is_refused_with_the_names_that_there_are() -> None:
    many = [adapter(f"a{number:02}") for number in range(30)]
    refused = meant("m:no", register(*many))
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.reason, refused.param) == ("model_not_found", "unknown_adapter", "model")
    assert "its adapters: a00, a01," in refused.message
    assert refused.message.endswith("a19 and 10 more")
    bare = meant("m:no", register())
    assert isinstance(bare, Refusal)
    assert bare.message == "model 'm' has no adapter 'no'; it has none"
    # no host or group has this base: the refusal is that of any unknown model
    assert meant("other:no", register()) == Meant(RequestFacts("other:no", "key"))


def test_a_register_that_was_not_read_refuses_nothing_for_good() -> None:
    unread = AdapterRegister()
    refused = meant("m:fr", unread)
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.reason) == ("unavailable", "adapters_unknown")
    assert refused.retry_after_s
    assert meant("m", unread) == Meant(RequestFacts("m", "key"))
    behind = register(adapter())
    assert not behind.apply(AdapterChanged(base="m", name="de", before=5, version=6, put=adapter("de")))
    assert isinstance(meant("m:fr", behind), Meant), "what is known is served meanwhile"
    again = meant("m:de", behind)
    assert isinstance(again, Refusal)
    assert again.reason == "adapters_unknown"


def test_an_answer_goes_on_with_the_content_that_began_it_or_not_at_all() -> None:
    known = register(adapter())
    change = AdapterChanged(base="m", name="fr", before=1, version=2, put=adapter(fingerprint=B))
    assert known.apply(change)
    resumed = meant("m:fr", known, weights=f"w+{A}")
    assert isinstance(resumed, Meant)
    assert resumed.adapter == adapter(), "with the one that was replaced"
    new = meant("m:fr", known)
    assert isinstance(new, Meant)
    assert new.adapter == adapter(fingerprint=B)
    assert known.apply(AdapterChanged(base="m", name="fr", before=2, version=3))
    for content in (A, B):
        unloaded = meant("m:fr", known, weights=f"w+{content}")
        assert isinstance(unloaded, Meant)
        assert unloaded.facts.adapter == content
    never = meant("m:fr", known, weights=f"w+{'c' * 32}")
    assert isinstance(never, Refusal)
    assert (never.code, never.reason, never.retry_after_s) == ("unavailable", "adapter_changed", None)


def test_the_register_takes_changes_in_their_order_alone() -> None:
    known = register(adapter(), adapter(base="n"), version=4)
    assert known.named("fr") is None, "two bases have one"
    assert known.apply(AdapterChanged(base="n", name="fr", before=4, version=5))
    assert known.named("fr") == adapter()
    assert known.apply(AdapterChanged(base="n", name="fr", before=3, version=4, put=adapter(base="n")))
    assert known.find("n:fr") is None, "old news changes nothing"
    assert known.apply(AdapterChanged(base="m", name="de", before=5, version=9, put=adapter("de")))
    assert [one.name for one in known.of_base("m")] == ["de", "fr"]
    assert (len(known), known.version, known.is_current) == (2, 9, True)
    assert not known.apply(AdapterChanged(base="m", name="it", before=10, version=11, put=adapter("it")))
    assert (known.version, known.is_current) == (9, False)
    known.replace_all([adapter("it")], 11)
    assert ([one.name for one in known.list_all()], known.is_current) == (["it"], True)
    assert known.former("m", A) is not None
    assert known.named("fr") is None


def fleet_view(holders: set[str], busy: dict[str, int] | None = None) -> FleetView:
    waiting = busy or {}
    groups = [
        GroupView(
            name,
            running=8 if name in waiting else 0,
            waiting=waiting.get(name, 0),
            wait_s=waiting.get(name, 0) * 0.5,
            max_running=8,
            capacity=32,
            has_adapter=name in holders,
        )
        for name in ("g0", "g1", "g2", "g3")
    ]
    return FleetView("m", groups, adapter=A)


def chosen(policy: PolicyName, key: str, view: FleetView, **facts: object) -> str:
    request = RequestFacts("m", key, adapter=A, **facts)  # type: ignore[arg-type]
    decision = choose(request, view, 0.0, policy=make_policy(policy))
    assert isinstance(decision, Assignment)
    return decision.group


@pytest.mark.parametrize("policy", ["sticky", "least_loaded", "hybrid"])
def test_a_group_that_has_the_adapter_is_preferred(policy: PolicyName) -> None:
    keys = [f"k{number}" for number in range(40)]
    assert {chosen(policy, key, fleet_view({"g2"})) for key in keys} == {"g2"}
    assert {chosen(policy, key, fleet_view({"g1", "g2"})) for key in keys} == {"g1", "g2"}


@pytest.mark.parametrize("policy", ["least_loaded", "hybrid"])
def test_a_group_that_has_it_and_is_busier_is_not(policy: PolicyName) -> None:
    assert chosen(policy, "k", fleet_view({"g2"}, busy={"g2": 6})) != "g2"


def test_while_no_group_has_it_all_its_requests_have_one_home() -> None:
    assert len({chosen("hybrid", f"k{number}", fleet_view(set())) for number in range(40)}) == 1


def test_a_session_stays_where_its_last_turn_was() -> None:
    assert chosen("hybrid", "k", fleet_view({"g2"}), last_group="g0", session_tokens=50) == "g0"


def test_a_resumed_request_goes_to_a_group_that_has_it() -> None:
    assert {chosen("hybrid", f"k{number}", fleet_view({"g3"}), resumed=True) for number in range(8)} == {"g3"}


def test_what_it_costs_to_read_an_adapter() -> None:
    small, large = (RequestFacts("m", "k", adapter=A, adapter_bytes=size) for size in (10**6, 10**9))
    away, here = GroupView("g"), GroupView("g", has_adapter=True)
    assert 0.0 < adapter_s(small, away) < adapter_s(large, away)
    assert adapter_s(large, here) == adapter_s(RequestFacts("m", "k"), away) == 0.0
    costs = Costs()
    assert costs.total_s(small, away, None) - costs.total_s(small, here, None) == adapter_s(small, away)


def test_the_view_of_a_fleet_shows_which_groups_have_an_adapter() -> None:
    fleet = new_fleet()
    for number in range(4):
        having = beat(name=f"g{number}")
        if number == 2:
            having = type(having)(
                **{name: getattr(having, name) for name in having.__struct_fields__} | {"adapters": [B, A]}
            )
        fleet.observe(having, 0.0)
    view = fleet.view("m", 0.0, adapter=A)
    assert [group.name for group in view.ready if group.has_adapter] == ["g2"]
    assert {view.home(f"k{number}") for number in range(20)} == {view.find("g2")}
    without = fleet.view("m", 0.0)
    assert not any(group.has_adapter for group in without.ready)
    assert len({without.home(f"k{number}") for number in range(20)}) > 1
    other = fleet.view("m", 0.0, adapter="c" * 32)
    assert len({other.home(f"k{number}") for number in range(20)}) == 1
