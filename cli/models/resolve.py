"""Finds the model that a name or a path means, for every command that takes `--model`."""

import sys
from pathlib import Path

from cli.console import CommandError, err, fail
from cli.models.catalogue import DEMO, CatalogueModel, catalogue
from cli.models.names import HUB_FORM, HUB_ID, HubName, hub_name, is_hub_name
from cli.models.records import DamagedModel

LARGE_BYTES = 300_000_000  # from here on a model is fetched only after a yes, or with `--pull`


class NotPulled(CommandError):
    """A model that can be pulled is not here."""


def fetches(*, pull: bool | None) -> bool:
    """Whether a model that is not here is fetched; None: if there is a terminal."""
    return sys.stdin.isatty() and err.is_terminal if pull is None else pull


def resolve_model(given: str | Path, *, pull: bool | None = None, accept_terms: bool = False) -> Path:
    """Return the path of a model: a Hugging Face directory or a GGUF file.

    Args:
        given: A name of the catalogue, a name on the Hub (`hf:OWNER/NAME`), or a path. A name comes before a
            directory of the same name, which is given as `./NAME`.
        pull: Whether a model that is not there is fetched; None: if there is a terminal.
        accept_terms: The user accepts the terms of a model that has some.

    Raises:
        CommandError: There is no such model, it was not pulled, or it is damaged.
    """
    if str(given) == DEMO:
        from cli.stack.model_dir import demo_model  # noqa: PLC0415 (it imports this module)

        return demo_model()
    model = meant_by(str(given))
    return model if isinstance(model, Path) else pulled(model, str(given), pull, accept_terms)


def meant_by(given: str) -> CatalogueModel | HubName | Path:
    """Return what a name or a path means, without a look into the model; fail if it means nothing."""
    named = hub_name(given) if is_hub_name(given) else catalogue().get(given)
    if named is not None:
        return named
    try:
        path = Path(given).expanduser()
        if path.exists():
            return path.absolute()
    except (OSError, RuntimeError) as error:  # a name that is too long, a home directory of no user ...
        fail(f"{given[:128]} cannot be looked at: {getattr(error, 'strerror', None) or error}.", 2)
    hub = (
        f" Is it a name on the Hugging Face Hub? Then it is `hf:{given}`." if HUB_ID.fullmatch(given) else ""
    )
    return fail(
        f"There is no file or directory {given}, and the catalogue has only {', '.join(catalogue())}.{hub} "
        f"Give a path (a Hugging Face directory or a GGUF file), a name of the catalogue, or {HUB_FORM}.",
        2,
    )


def pulled(model: CatalogueModel | HubName, given: str, pull: bool | None, accept_terms: bool) -> Path:
    """Return where a model of the catalogue or the Hub is, after a pull if that is allowed."""
    from cli.models.pull import directory_of, intact_record  # noqa: PLC0415 (keeps `ryz --help` quick)
    from cli.models.pull import pull as fetch  # noqa: PLC0415
    from cli.models.store import in_bytes  # noqa: PLC0415

    try:
        if intact_record(model) is not None:
            return directory_of(model)
    except DamagedModel as damage:
        fail(f"{damage}. `ryz models pull {given}` fetches it again.", 2)
    if not fetches(pull=pull):
        terms = " --accept-terms" if isinstance(model, CatalogueModel) and model.terms else ""
        raise NotPulled(
            f"The model {given} is not here yet. Fetch it once: `ryz models pull {given}{terms}`.", 2
        )
    if pull is None and isinstance(model, CatalogueModel) and model.size >= LARGE_BYTES:
        question = f"Fetch {given} ({in_bytes(model.size)}, {model.licence}) from {model.source}? [y/N] "
        if input(question).strip().lower() not in {"y", "yes"}:
            raise NotPulled(f"{given} was not fetched. `ryz models pull {given}` does it.", 2)
    return fetch(model, accept_terms=accept_terms)


def refuse_unserved(name: str) -> None:
    """Fail for a model of the catalogue that cannot be served."""
    if reason := why_unserved(name):
        fail(f"{name} cannot be served yet: {reason}. Choose another model (`ryz models list`).", 2)


def why_unserved(name: str) -> str:
    """Return why a model of the catalogue cannot be served; empty if it can, or for another name."""
    from services.worker.gguf.config import ARCHITECTURES  # noqa: PLC0415 (quick `--help`)

    known = catalogue().get(name)
    if known is None or not known.architecture or known.architecture in ARCHITECTURES:
        return ""
    return f"its architecture is {known.architecture}, and supported are {', '.join(ARCHITECTURES)}"
