"""Models that vLLM computes: one group each, and none that come and go."""

import pytest

from cli.console import CommandError
from cli.stack.fleet.entry import FoundModel, ModelEntry
from cli.stack.fleet.without_ranks import settled_vllm


def served(**given: object) -> FoundModel:
    return FoundModel(ModelEntry.model_validate({"source": "demo", "name": "demo", **given}), None, None, 0)


def test_a_model_has_one_group_unless_its_entry_says_more() -> None:
    plain, several = settled_vllm([served(), served(groups=3)])
    assert (plain.entry.groups, several.entry.groups) == (1, 3)
    assert plain.entry.tensor_parallel == 1  # how many GPUs share it is said by vLLM's arguments


def test_models_that_come_and_go_are_refused() -> None:
    with pytest.raises(CommandError, match="RYZ_VLLM_ARGS"):
        settled_vllm([served(load="demand")])
