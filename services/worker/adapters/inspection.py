"""Inspects an adapter's files for a leader, which gets this as a function: it must not import the engine."""

from pathlib import Path

from services.worker.adapters.adapter import read_adapter
from services.worker.adapters.base_model import BaseModel
from services.worker.adapters.description import AdapterDescription, AdapterError
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.read_config import read_config


def inspect_adapter(source: Path, base: Path, ranks: int = 1) -> AdapterDescription:
    """Reads an adapter's files and checks that they fit the base.

    Args:
        source: A PEFT directory, or a GGUF file.
        base: The base model's directory or file.
        ranks: Of a group, for the memory.

    Raises:
        AdapterError: It cannot be served; one sentence.
    """
    try:
        config = read_config(base)
    except ModelError as error:
        raise AdapterError(str(error)) from error
    return read_adapter(source, BaseModel.of(base, config)).describe(ranks)
