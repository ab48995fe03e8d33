"""The list of models: the catalogue, and what is on this machine beyond it."""

from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from cli.models.catalogue import DEMO, CatalogueModel, catalogue
from cli.models.choosing.fits import room_here
from cli.models.store import in_bytes, models_dir, size_of, stored_models
from cli.stack.state import StackState


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLine:
    """A line of the list.

    Attributes:
        memory: Bytes that a worker group needs at least; 0 if unknown.
        path: Where it lies; empty for a model that is not here.
        part: Bytes that a pull that was cut has left.
        groups: How many groups of the running stack serve it.
        fits: Whether this machine has memory for a worker group; None if that is unknown.
        unchecked: This project has not run it; it is pinned at the first pull.
    """

    name: str
    title: str
    licence: str
    size: int
    source: str
    memory: int = 0
    path: str = ""
    part: int = 0
    groups: int = 0
    fits: bool | None = None
    unchecked: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


def listed_models(serving: Counter[Path]) -> list[ModelLine]:
    """Return all models, first those of the catalogue that fit this machine, then others that were pulled.

    Those of the catalogue that are too large come last.

    Args:
        serving: Groups of the stack that is up, by the files of their model.
    """
    room = room_here()
    known = [replace(one, fits=one.memory <= room) for one in map(_of_catalogue, catalogue().values())]
    others = [
        ModelLine(
            name=record.name,
            title="",
            licence=record.licence,
            size=record.size,
            source=record.source,
            path=str(path),
        )
        for path, record in stored_models()
        if record.name not in catalogue()
    ]
    models = sorted(known + others, key=lambda one: one.fits is False)
    return [replace(one, groups=serving[Path(one.path).resolve()]) if one.path else one for one in models]


def listing(models: list[ModelLine], *, groups: bool) -> Table:
    """Return a table of the models.

    Args:
        groups: Whether it has a column of the groups of a stack.
    """
    table = Table(box=None, pad_edge=False)
    headings = (
        "NAME",
        "SIZE",
        "MEMORY",
        "FITS",
        "LICENCE",
        *(["GROUPS"] if groups else []),
        "HERE",
        "SOURCE",
    )
    for heading in headings:
        is_number = heading in {"SIZE", "MEMORY", "GROUPS"}
        table.add_column(heading, justify="right" if is_number else "left", overflow="fold")
    for model in models:
        here = "yes" if model.path else f"{in_bytes(model.part)} of it" if model.part else "no"
        memory = in_bytes(model.memory) if model.memory else "-"
        fits = "-" if model.fits is None else "yes" if model.fits else "no"
        source = f"{model.source} (unchecked)" if model.unchecked else model.source
        serving = [str(model.groups or "-")] if groups else []
        row = (model.name, in_bytes(model.size), memory, fits, model.licence or "-", *serving, here, source)
        table.add_row(*row)
    return table


def _of_catalogue(model: CatalogueModel) -> ModelLine:
    if model.name == DEMO:
        from cli.stack.model_dir import demo_model  # noqa: PLC0415 (it imports this folder)

        path: Path = demo_model()
        size = size_of(path)
    else:
        path, size = models_dir() / model.file, model.size
    part = path.with_name(f".{path.name}.part")
    return ModelLine(
        name=model.name,
        title=model.title,
        licence=model.licence,
        size=size,
        source=model.source,
        memory=model.memory,
        unchecked=bool(model.hub),
        path=str(path) if path.exists() else "",
        part=size_of(part) if part.exists() else 0,
    )


def serving_groups(state: StackState | None) -> Counter[Path]:
    """Return the number of groups that serve each model, by its file or directory."""
    import psutil  # noqa: PLC0415 (slow to import)

    found = Counter[Path]()
    for service in state.services if state is not None else ():
        if not service.model or not service.pid:
            continue
        try:
            model = psutil.Process(service.pid).environ().get("RYZ_MODEL", "")
        except (psutil.Error, OSError):
            continue  # it has ended
        if model:
            found[Path(model).resolve()] += 1
    return found
