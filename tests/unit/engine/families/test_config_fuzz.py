"""A changed field of a config changes our logits as it changes those of transformers, or is refused."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.kits.families.config_changes import all_changes, check_change
from tests.kits.families.models import ENTRIES, each_once, served

NAMES = served(ENTRIES)


def _some(names: list[str]) -> st.SearchStrategy[tuple[str, int]]:
    return st.tuples(st.sampled_from(names), st.integers(0, 10**6))


def _check(drawn: tuple[str, int]) -> None:
    name, number = drawn
    changes = all_changes(name)
    check_change(name, *changes[number % len(changes)])


@settings(
    max_examples=16,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
@given(drawn=_some(each_once(NAMES)[::12]))
def test_a_few_changes_of_configs(drawn: tuple[str, int]) -> None:
    _check(drawn)


@pytest.mark.models
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_many_changes_of_configs(name: str) -> None:
    @settings(max_examples=150, deadline=None, phases=[Phase.generate])
    @given(number=st.integers(0, 10**6))
    def check(number: int) -> None:
        _check((name, number))

    check()


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_unknown_fields_are_refused_by_name(name: str) -> None:
    said = check_change(name, ("attention_temperature",), 0.5)
    assert "`attention_temperature` is not supported in models of" in said
    assert check_change(name, ("attention_temperature",), None) == "equal"
