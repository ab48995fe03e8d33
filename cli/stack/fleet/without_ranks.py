"""Models that no ranks of ours compute: the null engine takes nothing, vLLM what its own arguments say."""

from collections.abc import Sequence

from cli.console import fail
from cli.stack.fleet.entry import FoundModel
from cli.stack.fleet.on_demand import comes_and_goes

NULL_GROUPS = NULL_RANKS = 2  # the null engine needs neither memory nor cores


def settled_null(model: FoundModel) -> FoundModel:
    """Return a model of which groups compute nothing."""
    entry = model.entry
    groups = entry.groups or max(NULL_GROUPS, entry.min_groups)
    ranks = entry.tensor_parallel or NULL_RANKS
    return model.with_values(groups=groups, tensor_parallel=ranks, threads=entry.threads or 1)


def settled_vllm(models: Sequence[FoundModel]) -> tuple[FoundModel, ...]:
    """Return the models with one group each, unless their entries say more.

    Raises:
        CommandError: Groups are to come and go, for which the memory of each has to be known.
    """
    if comes_and_goes(models):
        fail(
            "With `--engine vllm` all models run as long as the stack: what vLLM takes is said by "
            "RYZ_VLLM_ARGS, and not planned here. Leave out `load`, `sleep_after_s` and `min_groups`.",
            2,
        )
    return tuple(
        model.with_values(groups=model.entry.groups or 1, tensor_parallel=1, threads=model.entry.threads or 1)
        for model in models
    )
