"""Finds the pairs of matrices in a PEFT directory: `adapter_config.json` and `adapter_model.safetensors`.

Nothing but these two files is opened, and neither outside of the directory. Pickles are never opened.
"""

import re
from pathlib import Path
from typing import NamedTuple

from services.worker.adapters.base_copies import refuse_other_weights
from services.worker.adapters.base_model import BaseModel
from services.worker.adapters.description import AdapterError
from services.worker.adapters.peft_config import CONFIG, PeftConfig, read_peft_config
from services.worker.adapters.stored_pair import NamedTensor, StoredPair, require_partners, require_rank
from services.worker.adapters.whole_head import take_whole_head
from services.worker.engine.checkpoint.safetensors_file import read_header
from services.worker.engine.checkpoint.stored_tensor import StoredTensor
from services.worker.engine.config.json_fields import ModelError
from services.worker.model_files.json_files import shown

WEIGHTS = "adapter_model.safetensors"
PICKLE = "adapter_model.bin"
_NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])(?:\.default)?\.weight")
_MAGNITUDE = re.compile(r"base_model\.model\.(.+)\.lora_magnitude_vector(?:\.default)?(?:\.weight)?")
_OF_BASE = re.compile(r"base_model\.model\.(.+?)(?:\.base_layer)?\.weight")
_KNOWN = (
    ("lora_embedding_", "adapters of embeddings are not served; train without the embedding as a target"),
    ("lora_B.bias", "biases of adapters are not served; train with lora_bias=false"),
    ("modules_to_save", "PEFT saves whole modules under other names; save the adapter with save_pretrained"),
)
_PARTNER = {True: ".lora_A.weight", False: ".lora_B.weight"}


class PeftTensors(NamedTuple):
    """What a directory has.

    Attributes:
        pairs: In the order of their modules.
        head: [tokens, hidden], in place of the base's output head; None: that stays.
    """

    pairs: list[StoredPair]
    head: NamedTensor | None


def peft_tensors(directory: Path, base: BaseModel) -> PeftTensors:
    """Finds the tensors of a directory.

    Raises:
        AdapterError: A file is missing, damaged or outside of the directory, or has what is not served.
    """
    weights = _own_file(directory, WEIGHTS)
    if not weights.exists():
        if (directory / PICKLE).exists():
            raise AdapterError(
                f"{directory / PICKLE} is a pickle, which can run code when it is read; save the adapter as "
                f"{WEIGHTS} (safe_serialization=True)"
            )
        raise AdapterError(f"{directory} holds no {WEIGHTS}; an adapter is a PEFT directory or a GGUF file")
    config = read_peft_config(_own_file(directory, CONFIG))
    try:
        tensors = read_header(weights)
    except ModelError as error:
        raise AdapterError(str(error)) from error
    found = _sorted(weights, tensors)
    head = take_whole_head(weights, config, found.copies, found.downs, base)
    refuse_other_weights(weights, found.copies, base)
    require_partners(weights, found.downs, found.ups, _PARTNER)
    _require_magnitudes(weights, config, found)
    return PeftTensors([_pair(weights, config, module, found) for module in sorted(found.downs)], head)


def _own_file(directory: Path, name: str) -> Path:
    """A file of the directory, which may be missing.

    Raises:
        AdapterError: It is a link to one outside, or no regular file.
    """
    path = directory / name
    try:
        inside = path.resolve().is_relative_to(directory.resolve())
    except (OSError, RuntimeError, ValueError):  # a loop of links, a null byte
        inside = False
    if not inside:
        raise AdapterError(f"{path} leads out of its directory; copy the file there")
    if path.exists() and not path.is_file():
        raise AdapterError(f"{path} is no regular file; export the adapter again")
    return path


_ByModule = dict[str, NamedTensor]


class _Found(NamedTuple):
    """The matrices A and B, magnitudes, and weights of the base, by module."""

    downs: _ByModule
    ups: _ByModule
    magnitudes: _ByModule
    copies: _ByModule


def _sorted(path: Path, tensors: dict[str, StoredTensor]) -> _Found:
    found: dict[str, _ByModule] = {"A": {}, "B": {}, "magnitude": {}, "": {}}
    for name, stored in tensors.items():
        for part, reason in _KNOWN:
            if part in name:
                raise AdapterError(f"{path}: tensor {name} is there, but {reason}")
        match, side = _NAME.fullmatch(name), ""
        if match is not None:
            side = match[2]
        elif (match := _MAGNITUDE.fullmatch(name)) is not None:
            side = "magnitude"
        else:
            match = _OF_BASE.fullmatch(name)
        if match is None:
            raise AdapterError(f"{path}: tensor {shown(name)} is no matrix of a LoRA; train without it")
        module = match[1]
        if module in found[side]:
            raise AdapterError(f"{path}: module {module} has two such tensors; export the adapter again")
        found[side][module] = NamedTensor(name, stored)
    return _Found(*found.values())


def _require_magnitudes(path: Path, config: PeftConfig, found: _Found) -> None:
    """Refuses a file whose magnitudes are not those of its pairs, or not what the config says."""
    for module, tensor in found.magnitudes.items():
        if not config.has_magnitudes:
            raise AdapterError(
                f"{path}: tensor {shown(tensor.name)} is of a DoRA, and {config.path.name} says no "
                "`use_dora`; take both files from the same export"
            )
        if module not in found.ups:
            raise AdapterError(
                f"{path}: tensor {shown(tensor.name)} lacks the matrices of its module; export the "
                "adapter again"
            )
        shape = [found.ups[module].stored.shape[0]]
        if list(tensor.stored.shape) != shape:
            raise AdapterError(
                f"{path}: tensor {shown(tensor.name)} has shape {list(tensor.stored.shape)}, and its module "
                f"has {shape} outputs; export the adapter again"
            )
    for module in found.ups if config.has_magnitudes else ():
        if module not in found.magnitudes:
            raise AdapterError(
                f"{path}: module {shown(module)} has no lora_magnitude_vector, and {config.path.name} says "
                "`use_dora`; export the adapter again"
            )


def _pair(path: Path, config: PeftConfig, module: str, found: _Found) -> StoredPair:
    down, up = found.downs[module], found.ups[module]
    rank = require_rank(path, module, down, up)
    wanted = config.rank_of(module)
    if rank != wanted:
        raise AdapterError(
            f"{path}: tensor {down.name} has rank {rank}, {config.path.name} says {wanted}; take both files "
            "from the same export"
        )
    return StoredPair(module, down, up, config.scale_of(module, rank), found.magnitudes.get(module))
