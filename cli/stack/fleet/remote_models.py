"""Models of a file that servers of others compute: they take no cores, and no memory for weights or KV.

`ModelEntry.remote` names the server. The other choices of a start (`sizing.py`) are made without them.
"""

from collections.abc import Sequence
from pathlib import Path

from cli.stack.fleet.declared import Declaration
from cli.stack.fleet.entry import FoundModel
from cli.stack.sizing_text import count_words
from services.worker.guests.remote.options import RemoteOptions

_COMES_AND_GOES = (
    "in a file whose models come and go (`load`, `sleep_after_s`, `min_groups`) all are computed here: start "
    "its group beside the stack with `ryz worker --remote`"
)


def own_models(models: Sequence[FoundModel]) -> list[FoundModel]:
    """Return the models that are computed here."""
    return [model for model in models if not model.entry.remote]


def check_beside(models: Sequence[FoundModel], declared: Declaration) -> None:
    """Note models of servers beside models that come and go."""
    if any(model.entry.comes_and_goes for model in models):
        for model in models:
            if model.entry.remote:
                declared.add_entry_problem(model.number, "remote", _COMES_AND_GOES)


def settled_remote(models: Sequence[FoundModel], settled: Sequence[FoundModel]) -> tuple[FoundModel, ...]:
    """Return all models in their order, those of servers with what their entries leave open.

    Args:
        models: All, as they were found.
        settled: Those that are computed here, with what was chosen.
    """
    by_number = {model.number: model for model in settled}
    return tuple(
        by_number.get(model.number)
        or model.with_values(groups=model.entry.groups or 1, tensor_parallel=1, threads=1)
        for model in models
    )


def describe_remote(models: Sequence[FoundModel]) -> list[str]:
    """Return a line for each model of a server."""
    return [
        f"{model.name}: {count_words(model.entry.groups or 1, 'group')} in front of {host_of(model)}, which "
        "computes it; no memory for weights and KV here."
        for model in models
        if model.entry.remote
    ]


def host_of(model: FoundModel) -> str:
    """Return the host of a model's server."""
    return RemoteOptions(url=model.entry.remote, model=model.name).host


def remote_settings(model: FoundModel) -> dict[str, str]:
    """Return what an entry says of its server, as settings of the leaders of its groups."""
    entry = model.entry
    return {
        "RYZ_ENGINE": "remote",
        "RYZ_REMOTE_URL": entry.remote,
        "RYZ_REMOTE_MODEL": entry.remote_model,
        "RYZ_REMOTE_KEY_FILE": entry.key_file,
    }


def with_key_file(declared: Declaration, model: FoundModel) -> FoundModel:
    """Make the path of the key's file absolute; note one that is not there."""
    file = model.entry.key_file
    if not file:
        return model
    path = Path(file).expanduser()
    if declared.file is not None and not path.is_absolute():
        path = declared.file.absolute().parent / path
    if not path.is_file():
        declared.add_entry_problem(
            model.number, "key_file", f"there is no file {path}: name the server's key"
        )
    return model.with_values(key_file=str(path))
