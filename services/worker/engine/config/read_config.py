"""Reads the shape of a model, as `config.json` or the metadata of a GGUF file gives it; imports no torch.

What the fields mean is said by a function for each family, in `families/`. A model that we could not compute
exactly is refused: an architecture that is not known, and every field that nothing has read, unless it is
known to have no effect.
"""

from pathlib import Path
from typing import Any

from services.worker.engine.config.families.neutral_fields import NEUTRAL, WITHOUT_EFFECT
from services.worker.engine.config.families.registry import FAMILIES, family_of
from services.worker.engine.config.json_fields import JsonFields, ModelError, read_json
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.packed_weights import require_packed
from services.worker.engine.config.whole_norms import with_whole_norms
from services.worker.gguf.config import hf_config
from services.worker.gguf.gguf_file import is_gguf, read_gguf
from services.worker.gguf.header_bytes import BadGguf
from services.worker.model_files.json_files import shown


def read_config(model: Path) -> ModelConfig:
    """The model's shape.

    Args:
        model: A directory in Hugging Face format, or a GGUF file.

    Raises:
        ModelError: No such directory or file, broken JSON, an unknown architecture, a wrong or unknown field.
    """
    path, raw = _read_fields(model)
    architectures = raw.get("architectures")
    known = ", ".join(FAMILIES)
    if not isinstance(architectures, list) or len(architectures) != 1:
        raise ModelError(f"{path}: `architectures` must name one of {known}, got {shown(architectures)}")
    family = family_of(architectures[0]) if isinstance(architectures[0], str) else None
    if family is None:
        raise ModelError(f"{path}: architecture {shown(architectures[0])} is not supported; known: {known}")
    quantized = raw.get("quantization_config")
    if isinstance(quantized, dict) and quantized.get("quant_method") != "mxfp4":  # which gpt-oss reads
        require_packed(path, quantized)
        raw = {name: value for name, value in raw.items() if name != "quantization_config"}
    fields = JsonFields(path, raw)
    config = family.read(fields)
    _refuse_unread(fields, architectures[0])
    return with_whole_norms(config) if is_gguf(model) else config


def _refuse_unread(fields: JsonFields, architecture: str) -> None:
    """Refuses fields that the family has not read and that are not known to have no effect."""
    for table, name in fields.unread():
        if name in WITHOUT_EFFECT:
            continue
        if name in NEUTRAL:
            table.require(name, *NEUTRAL[name])
            continue
        raise ModelError(
            f"{fields.path}: `{table.prefix}{name}` is not supported in models of {architecture}, because "
            f"what it changes in the computation is not known; known fields: {', '.join(sorted(table.known))}"
        )


def _read_fields(model: Path) -> tuple[Path, dict[str, Any]]:
    """The file with the config, and its fields under the names of Hugging Face."""
    if not is_gguf(model):
        return model / "config.json", read_json(model / "config.json")
    try:
        return model, hf_config(read_gguf(model, vocabulary=False))
    except BadGguf as error:
        raise ModelError(str(error)) from error
