"""A base model, as its adapters are checked against it: its shape, and how they name its matrices."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from services.worker.adapters.description import AdapterError
from services.worker.adapters.targets import Parts, find_parts
from services.worker.engine.checkpoint.names.file_names import FileNames
from services.worker.engine.checkpoint.names.gguf_names import gguf_names
from services.worker.engine.config.families.registry import family_of
from services.worker.engine.config.model import ModelConfig
from services.worker.gguf.config import ARCHITECTURES
from services.worker.gguf.gguf_file import GgufFile, is_gguf, read_gguf
from services.worker.gguf.header_bytes import BadGguf
from services.worker.model_files.json_files import shown

_KEPT = 8  # sets of modules: adapters of one base mostly have the same


@dataclass(frozen=True, slots=True)
class BaseModel:
    """A base model.

    Attributes:
        path: Its directory or file.
        config: Its shape; the head is a matrix of its own here, as adapters have it.
    """

    path: Path
    config: ModelConfig
    _parts: dict[frozenset[str], Parts] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, path: Path, config: ModelConfig) -> "BaseModel":
        """A base model with that config."""
        return cls(path, replace(config, tied_embeddings=False))

    @property
    def names(self) -> FileNames:
        """How its family names modules, and so PEFT."""
        family = family_of(self.config.architecture)
        assert family is not None  # read_config has accepted it
        return family.names

    def parts(self, modules: frozenset[str]) -> Parts:
        """Its tensors in the modules of a PEFT adapter, which are kept for the next one."""
        found = self._parts.get(modules)
        if found is None:
            if len(self._parts) >= _KEPT:
                self._parts.clear()
            found = self._parts[modules] = find_parts(modules, self.names, self.config)
        return found

    def gguf_names(self, adapter: GgufFile) -> FileNames:
        """How GGUF files of the adapter's architecture name modules.

        Raises:
            AdapterError: The architecture is not the base's.
        """
        architecture = ARCHITECTURES.get(adapter.architecture)
        if architecture is None:
            raise AdapterError(
                f"{adapter.path}: its architecture {shown(adapter.architecture)} is not supported; convert "
                "the adapter for a base of a supported one"
            )
        if is_gguf(self.path):
            self._require_same(adapter)
        return gguf_names(architecture)

    def _require_same(self, adapter: GgufFile) -> None:
        try:
            own = read_gguf(self.path, vocabulary=False)
        except BadGguf as error:
            raise AdapterError(str(error)) from error
        if own.architecture != adapter.architecture:
            raise AdapterError(
                f"{adapter.path} is for a base of architecture {shown(adapter.architecture)}, and "
                f"{self.path} is {shown(own.architecture)}; load it with its own base"
            )
