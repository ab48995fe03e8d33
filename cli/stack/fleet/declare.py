"""Takes the models of a start from a models file, or from the options of `ryz up`; never from both."""

from collections.abc import Mapping

from cli.console import fail
from cli.stack.fleet.declared import Declaration
from cli.stack.fleet.entry import ModelEntry
from cli.stack.fleet.models_file import read_models_file
from cli.stack.options import UpOptions, as_given

ALIASES, TENANTS = "RYZ_MODEL_ALIASES", "RYZ_MODEL_TENANTS"
# options that say something of one model, with the variables that stand for them
_OF_ONE = {"model_name": "RYZ_MODEL_NAME", "draft_model": "RYZ_DRAFT_MODEL", "tool_format": "RYZ_TOOL_FORMAT"}
_OF_EACH = {
    "groups": "", "tensor_parallel": "", "threads": "RYZ_THREADS", "precision": "RYZ_PRECISION",
    "kv_cache_tokens": "RYZ_KV_CACHE_TOKENS",
}  # fmt: skip


def declare(options: UpOptions, environ: Mapping[str, str]) -> Declaration:
    """Return what is to be served; without a model it is one entry without a source.

    Raises:
        CommandError: Options contradict each other; or the models file cannot be read.
    """
    if options.models is not None:
        _refuse_beside_file(options, environ)
        return read_models_file(options.models)
    sources = options.model or [as_given(text) for text in [environ.get("RYZ_MODEL", "")] if text]
    if len(sources) > 1 and (given := _given(options, _OF_ONE)):
        fail(
            f"{_listed(given)} is for one model, and there are {len(sources)}: say it in a models file "
            "(`--models FILE`, docs/models.md), where each model has fields of its own.",
            2,
        )
    entries = {
        index: ModelEntry.model_construct(
            source=str(source),
            name=options.model_name,
            draft_model=str(options.draft_model or ""),
            tool_format=options.tool_format,
            groups=options.groups,
            tensor_parallel=options.tensor_parallel,
            threads=options.threads,
            precision=options.precision,
            kv_cache_tokens=options.kv_cache_tokens,
            load="demand" if options.on_demand else "start",
            tenants=tuple(filter(None, environ.get(TENANTS, "").split(","))),
        )
        for index, source in enumerate(sources or [""])
    }
    labels = {index: entry.source for index, entry in entries.items()}
    return Declaration(entries=entries, labels=labels)


def _refuse_beside_file(options: UpOptions, environ: Mapping[str, str]) -> None:
    given = _given(options, _OF_ONE | _OF_EACH | {"on_demand": ""})
    if options.model or environ.get("RYZ_MODEL"):
        given.insert(0, "`--model`" if options.model else "RYZ_MODEL")
    if given:
        fail(
            f"{_listed(given)} and `--models {options.models}` both say what is served: leave out one of the "
            "two. In the file each model has fields of its own (docs/models.md).",
            2,
        )
    if environ.get(ALIASES):
        fail(
            f"{ALIASES} and `--models {options.models}` both give models other names: unset {ALIASES}, and "
            "write the names as `aliases` of their models in the file.",
            2,
        )
    if environ.get(TENANTS):
        fail(
            f"{TENANTS} and `--models {options.models}` both say who may use models: unset {TENANTS}, and "
            "write `tenants` of the models in the file.",
            2,
        )


def _given(options: UpOptions, names: Mapping[str, str]) -> list[str]:
    """Those of these options that say something, by option and variable."""
    unset = UpOptions()
    return [
        f"`--{name.replace('_', '-')}`{f' ({variable})' if variable else ''}"
        for name, variable in names.items()
        if getattr(options, name) != getattr(unset, name)
    ]


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
