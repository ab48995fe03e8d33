"""A model that is added while a stack runs: what is refused of its entry, and what it gets."""

import json
from pathlib import Path
from typing import Any

import pytest

from cli.console import CommandError
from cli.stack.fleet.on_demand import OnDemandPlan
from cli.stack.fleet.one_more import find_one_more, read_entry
from cli.stack.memory_needs import MachineFacts
from cli.stack.options import UpOptions
from shared.errors import InvalidRequest

GIB = 2**30
OPTIONS = UpOptions(kernels="plain")


def plan(num_bytes: int) -> OnDemandPlan:
    return OnDemandPlan(num_bytes, 0, (), (), MachineFacts(4, num_bytes, kernels=False))


@pytest.mark.parametrize(
    ("given", "said", "param"),
    [
        ("no JSON", "the model is no JSON", None),
        ("[]", "must be an object", None),
        ({"name": "a"}, "`source` is missing", "source"),
        ({"source": "demo"}, "`name` is missing", "name"),
        ({"source": "demo", "name": "a b"}, "'a b' is no name", "name"),
        ({"source": "demo", "name": "a", "grops": 2}, "did you mean `groups`?", "grops"),
        ({"source": "demo", "name": "a", "pinned": "yes"}, "must be `true` or `false`", "pinned"),
        (
            {"source": "demo", "name": "a", "groups": 0, "priority": 99},
            "must be 10 or less.*must be 1 or more",
            "priority",
        ),
        (
            {"source": "demo", "name": "a", "aliases": ["b"]},
            "`aliases` are read at the start only",
            "aliases",
        ),
        ({"source": "demo", "name": "a", "load": "start"}, "is for models of the start", "load"),
        (
            {"source": "demo", "name": "a", "pinned": True, "sleep_after_s": 5.0},
            "contradict each other",
            None,
        ),
        ({"source": "hf:demo", "name": "a"}, "it has the form hf:OWNER/NAME", "source"),
        ({"source": "acme/small", "name": "a"}, "Then it is `hf:acme/small`", "source"),
        ({"source": "/no-such-model", "name": "a"}, "no file or directory /no-such-model", "source"),
        ({"source": "~no-such-user/model", "name": "a"}, "cannot be looked at", "source"),
        ({"source": "x" * 5000, "name": "a"}, "cannot be looked at: File name too long", "source"),
        (
            {"source": "demo", "name": "a", "draft_model": "smal"},
            "`draft_model`: There is no file or directory smal, and the catalogue has only demo",
            "draft_model",
        ),
    ],
)
def test_an_entry_that_is_wrong_is_refused_in_words(given: Any, said: str, param: str | None) -> None:
    with pytest.raises(InvalidRequest, match=said) as refused:
        read_entry(given if isinstance(given, str) else json.dumps(given))
    assert refused.value.data.get("param") == param


def test_an_entry_is_loaded_on_demand_and_gets_its_share_of_the_cores() -> None:
    entry = read_entry('{"source": "demo", "name": "more"}')
    found = find_one_more(OPTIONS, entry, plan(8 * GIB), served=1)
    assert (found.model.name, found.model.entry.load) == ("more", "demand")
    assert (found.model.entry.groups, found.model.entry.threads) == (1, 2)
    assert 0 < found.groups.further <= found.groups.first < 8 * GIB
    assert found.needs is not None


def test_what_cannot_be_had_is_said(tmp_path: Path) -> None:
    empty = read_entry(json.dumps({"source": str(tmp_path), "name": "a"}))
    with pytest.raises(CommandError, match="holds no model in Hugging Face format"):
        find_one_more(OPTIONS, empty, plan(8 * GIB), 1)
    with pytest.raises(CommandError, match="memory"):
        find_one_more(OPTIONS, read_entry('{"source": "demo", "name": "a"}'), plan(GIB // 2), 1)
