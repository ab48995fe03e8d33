"""A model that is added while a stack runs: what is refused of its entry, and what it gets."""

import json
from typing import Any

import pytest

from cli.console import CommandError
from cli.stack.fleet.on_demand import OnDemandPlan
from cli.stack.fleet.one_more import find_one_more, read_entry
from cli.stack.memory_needs import MachineFacts
from cli.stack.options import UpOptions

GIB = 2**30
OPTIONS = UpOptions(kernels="plain")


def plan(num_bytes: int) -> OnDemandPlan:
    return OnDemandPlan(num_bytes, 0, (), (), MachineFacts(4, num_bytes, kernels=False))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("no JSON", "The model is no JSON"),
        ("[]", "must be an object"),
        ({"name": "a"}, "`source` is missing"),
        ({"source": "demo"}, "`name` is missing"),
        ({"source": "demo", "name": "a", "grops": 2}, "did you mean `groups`?"),
        (
            {"source": "demo", "name": "a", "groups": 0, "priority": 99},
            "must be 10 or less.*must be 1 or more",
        ),
        ({"source": "demo", "name": "a", "aliases": ["b"]}, "`aliases` are read at the start only"),
        ({"source": "demo", "name": "a", "load": "start"}, "is for models of the start"),
        ({"source": "demo", "name": "a", "pinned": True, "sleep_after_s": 5.0}, "contradict each other"),
    ],
)
def test_an_entry_that_is_wrong_is_refused_in_words(given: Any, said: str) -> None:
    with pytest.raises(CommandError, match=said):
        read_entry(given if isinstance(given, str) else json.dumps(given))


def test_an_entry_is_loaded_on_demand_and_gets_its_share_of_the_cores() -> None:
    entry = read_entry('{"source": "demo", "name": "more"}')
    found = find_one_more(OPTIONS, entry, plan(8 * GIB), served=1)
    assert (found.model.name, found.model.entry.load) == ("more", "demand")
    assert (found.model.entry.groups, found.model.entry.threads) == (1, 2)
    assert 0 < found.groups.further <= found.groups.first < 8 * GIB
    assert found.needs is not None


def test_what_cannot_be_had_is_said() -> None:
    with pytest.raises(CommandError, match="no-such-model"):
        find_one_more(OPTIONS, read_entry('{"source": "/no-such-model", "name": "a"}'), plan(8 * GIB), 1)
    with pytest.raises(CommandError, match="memory"):
        find_one_more(OPTIONS, read_entry('{"source": "demo", "name": "a"}'), plan(GIB // 2), 1)
