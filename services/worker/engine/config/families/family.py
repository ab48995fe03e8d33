"""What a family is: how its config is read, and how its files name tensors."""

from collections.abc import Callable
from dataclasses import dataclass

from services.worker.engine.checkpoint.names.file_names import FileNames
from services.worker.engine.config.json_fields import JsonFields
from services.worker.engine.config.model import ModelConfig


@dataclass(frozen=True, slots=True)
class Family:
    """A family of models.

    Attributes:
        read: What the fields of a config say. Fields that it does not read are refused, unless they are known
            to have no effect.
        names: Of tensors in a directory.
    """

    read: Callable[[JsonFields], ModelConfig]
    names: FileNames
