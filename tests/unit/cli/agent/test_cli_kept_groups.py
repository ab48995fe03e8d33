"""Groups that run at any time: what an agent reports of them and refuses."""

import pytest

from cli.stack.agent.hosted import HostedModels
from cli.stack.fleet.entry import ModelEntry
from shared.messages import ManageModel, OfferedModel
from tests.unit.cli.agent.test_cli_hosted_models import FIRST, FURTHER, found_as, hosted, leader, start


def offered(host: HostedModels, model: str = "a") -> OfferedModel:
    return next(one for one in host.report(1.0).models if one.card.name == model)


def manage(host: HostedModels, action: str, groups: int = 0) -> str:
    managed = host.manage(ManageModel(model="a", action=action, groups=groups))  # type: ignore[arg-type]
    assert managed is not None
    return managed.refused


@pytest.mark.parametrize(
    ("entry", "least"),
    [({}, 0), ({"min_groups": 1}, 1), ({"min_groups": 2}, 2), ({"pinned": True, "min_groups": 1}, 1)],
)
def test_the_least_groups_are_those_of_the_entry(entry: dict[str, int], least: int) -> None:
    assert offered(hosted(**entry)).least_groups == least


def test_least_groups_hold_until_an_operator_wants_others() -> None:
    host = hosted(min_groups=1)
    assert "is to run at any time" in manage(host, "sleep")
    assert manage(host, "scale", 2) == ""
    assert offered(host).least_groups == 2
    assert manage(host, "unload") == ""
    assert offered(host).wish == "unload"
    assert manage(host, "load") == ""
    assert (offered(host).least_groups, offered(host).most_groups) == (1, 2)


def test_a_model_that_is_added_may_keep_what_is_left_of_the_memory() -> None:
    host = hosted(min_groups=1)
    start(host, "a")
    entry = ModelEntry(source="c", name="c", load="demand", groups=1, min_groups=1)
    assert host.add(entry, 1_700_000_000) == ""
    host.note_found(entry, found_as(entry), [leader(3, "c")])
    assert offered(host, "c").least_groups == 1
    second = ModelEntry(source="d", name="d", load="demand", groups=1, min_groups=1)
    assert host.add(second, 1_700_000_000) == ""
    host.note_found(second, found_as(second), [leader(4, "d")])
    failed = offered(host, "d")
    assert failed.failure == (
        "its `min_groups` need 600 MiB at any time, and those of other models 1.2 GiB; all may take 1.5 GiB: "
        "leave out `min_groups`, or make it smaller"
    )
    assert not failed.local
    assert FIRST > FURTHER
