"""Finds the models that are declared, and refuses those that cannot be served, all of them at once."""

from pathlib import Path

from cli.console import INTERRUPTED, CommandError
from cli.models.catalogue import DEMO, catalogue
from cli.models.names import is_hub_name, served_name
from cli.models.resolve import NotPulled, fetches
from cli.stack.fleet.adapter_entry import missing_files
from cli.stack.fleet.declared import Declaration
from cli.stack.fleet.entry import FoundModel
from cli.stack.fleet.remote_models import with_key_file
from cli.stack.model_dir import demo_model, find_model, refuse_split
from services.worker.model_files.load_model import has_chat_template, load_model, with_tool_format
from shared.errors import InvalidRequest

NO_MODEL_NAME = "demo"  # of a null engine without a model


def find_models(declared: Declaration, engine: str, *, pull: bool | None) -> tuple[FoundModel, ...]:
    """Return the models with their paths and names; those that are not here are fetched.

    Nothing is fetched while there is a problem: what else is wrong is noted, and left to the caller. That a
    model is not here is no problem then, if it would have been fetched.

    Args:
        engine: `torch`, `null` or `vllm`.
        pull: Whether a model that is not here is fetched; None: if there is a terminal.

    Raises:
        CommandError: Ctrl-C; or the one model of options cannot be served.
    """
    _name_entries(declared)
    declared.check_names()
    fetch = fetches(pull=pull)
    postponed = fetch and declared.has_problems
    found = list[FoundModel]()
    for index in declared.entries:
        model = _find(declared, index, engine, pull=fetch and not postponed, postponed=postponed)
        if model is not None and engine == "torch" and declared.file is not None:
            _check_fields(declared, model)
        if model is not None:
            model = with_key_file(declared, _with_adapters(declared, model))
        found += [] if model is None else [model]
    return tuple(found)


def _name_entries(declared: Declaration) -> None:
    for index, entry in declared.entries.items():
        if not entry.name:
            try:
                name = _default_name(_given(declared, entry.source)) if entry.source else NO_MODEL_NAME
            except CommandError:  # it is no name of a model, which `_find` says
                name = entry.source
            declared.entries[index] = entry.with_values(name=name)


def _default_name(given: Path) -> str:
    from cli.models.pull import directory_of, pullable  # noqa: PLC0415 (keeps `ryz --help` quick)

    text = str(given)
    if text == DEMO:
        return served_name(demo_model())
    named = text in catalogue() or is_hub_name(text)
    return served_name(directory_of(pullable(text)) if named else given)


def _given(declared: Declaration, source: str) -> Path:
    """What `--model` would be given: paths in a models file are relative to the file."""
    path = Path(source)
    is_name = source in catalogue() or is_hub_name(source)
    if declared.file is None or is_name or path.expanduser().is_absolute():
        return path
    return declared.file.absolute().parent / path


def _find(
    declared: Declaration, index: int, engine: str, *, pull: bool, postponed: bool
) -> FoundModel | None:
    """Find a model and its draft model; note what is wrong, or raise it for the one model of options."""
    entry, draft = declared.entries[index], None
    ranks = 1 if declared.file else entry.tensor_parallel or 1  # those of a file are checked below
    try:
        if entry.draft_model and engine == "torch":
            draft = find_model(_given(declared, entry.draft_model), "torch", 1, pull=pull)
    except CommandError as error:
        _note(declared, index, "draft_model", error, postponed=postponed)
    try:
        given = _given(declared, entry.source) if entry.source else None  # the null engine needs none
        # no rank reads the weights of a model that a server computes
        path = find_model(given, "null" if entry.remote else engine, ranks, pull=pull)
    except CommandError as error:
        _note(declared, index, "source", error, postponed=postponed)
        return None
    return FoundModel(entry, path, draft, index, chats=path is None or has_chat_template(path))


def _with_adapters(declared: Declaration, model: FoundModel) -> FoundModel:
    """Make the paths of adapters absolute; note those that are not there."""
    adapters = []
    for adapter in model.entry.adapters:
        path = _path_of(declared, adapter.source)
        if problem := missing_files(path):
            declared.add_entry_problem(model.number, "adapters", f"adapter {adapter.name!r}: {problem}")
        adapters.append(adapter.model_copy(update={"source": str(path)}))
    return model.with_values(adapters=tuple(adapters)) if adapters else model


def _path_of(declared: Declaration, source: str) -> Path:
    path = Path(source).expanduser()
    return path if declared.file is None or path.is_absolute() else declared.file.absolute().parent / path


def _note(declared: Declaration, index: int, field: str, error: CommandError, *, postponed: bool) -> None:
    if postponed and isinstance(error, NotPulled):
        return
    if error.exit_code == INTERRUPTED or (declared.file is None and len(declared.entries) == 1):
        raise error
    declared.add_entry_problem(index, field, str(error))


def _check_fields(declared: Declaration, model: FoundModel) -> None:
    """Note fields that do not suit the model."""
    assert model.path is not None
    ranks, form = model.entry.tensor_parallel or 1, model.entry.tool_format
    if not model.entry.remote and (problem := refuse_split(model.path, ranks)):
        declared.add_entry_problem(model.number, "tensor_parallel", f"`tensor_parallel` {ranks}: {problem}")
    try:
        if form:
            with_tool_format(load_model(model.path, model.name), form)
    except InvalidRequest as error:
        text = error.message.removeprefix("RYZ_TOOL_FORMAT: ")
        declared.add_entry_problem(model.number, "tool_format", f"`tool_format`: {text}")
