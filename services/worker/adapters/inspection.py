"""Inspects an adapter's files for a leader, which gets this as a function: it must not import the engine."""

from pathlib import Path

from services.worker.adapters.adapter import read_adapter
from services.worker.adapters.base_model import BaseModel
from services.worker.adapters.description import AdapterDescription, AdapterError
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.read_config import read_config


class AdapterInspector:
    """Inspects adapters of one base, whose config is read with the first of them.

    Args:
        base: The base model's directory or file.
        ranks: Of a group, for the memory.
    """

    def __init__(self, base: Path, ranks: int) -> None:
        self._path = base
        self._ranks = ranks
        self._base: BaseModel | None = None

    def inspect(self, source: str) -> AdapterDescription:
        """Reads an adapter's files and checks that they fit the base.

        Args:
            source: A PEFT directory, or a GGUF file.

        Raises:
            AdapterError: It cannot be served; one sentence.
        """
        if self._base is None:
            try:
                self._base = BaseModel.of(self._path, read_config(self._path))
            except ModelError as error:
                raise AdapterError(str(error)) from error
        return read_adapter(Path(source), self._base).describe(self._ranks)


def inspect_adapter(source: Path, base: Path, ranks: int = 1) -> AdapterDescription:
    """Inspects one adapter; see `AdapterInspector`."""
    return AdapterInspector(base, ranks).inspect(str(source))
