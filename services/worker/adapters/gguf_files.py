"""Finds the pairs of matrices in a GGUF adapter file, as llama.cpp's converter writes them."""

import re
from typing import Any

from services.worker.adapters.description import AdapterError
from services.worker.adapters.stored_pair import (
    NamedTensor,
    StoredPair,
    require_partners,
    require_rank,
    require_scale,
)
from services.worker.engine.checkpoint.stored_tensor import ITEM_BYTES, StoredTensor
from services.worker.gguf.dequantize import can_dequantize
from services.worker.gguf.gguf_file import GgufFile, GgufTensor
from services.worker.model_files.json_files import shown

_NAME = re.compile(r"(.+)\.weight\.lora_([ab])")
_PARTNER = {True: ".weight.lora_a", False: ".weight.lora_b"}
_ALPHA = "adapter.lora.alpha"


def gguf_pairs(file: GgufFile) -> list[StoredPair]:
    """The pairs of a file, by the names of their modules.

    Raises:
        AdapterError: It is no adapter, or has what is not served.
    """
    path = file.path
    if file.metadata.get("general.type") != "adapter":
        raise AdapterError(f"{path} is a GGUF file, but no adapter; give an adapter of the base")
    kind = file.metadata.get("adapter.type")
    if kind != "lora":
        raise AdapterError(f"{path}: `adapter.type` is {shown(kind)}, only lora is served; train a LoRA")
    if file.metadata.get("adapter.alora.invocation_tokens"):
        raise AdapterError(f"{path}: adapters that begin at a token are not served; train an ordinary LoRA")
    alpha = _alpha(file)
    found: dict[str, dict[str, NamedTensor]] = {"a": {}, "b": {}}
    for name, tensor in file.tensors.items():
        match = _NAME.fullmatch(name)
        if match is None:
            raise AdapterError(
                f"{path}: tensor {shown(name)} is no matrix of a LoRA; convert one without whole modules"
            )
        found[match[2]][match[1]] = NamedTensor(name, _stored(tensor))
    downs, ups = found["a"], found["b"]
    require_partners(path, downs, ups, _PARTNER)
    pairs = []
    for module in sorted(downs):
        rank = require_rank(path, module, downs[module], ups[module])
        # as llama.cpp: without an alpha the product is added as it is
        scale = require_scale(path, f"`{_ALPHA}` {alpha:g}", alpha / rank) if alpha else 1.0
        pairs.append(StoredPair(module, downs[module], ups[module], scale))
    return pairs


def _alpha(file: GgufFile) -> float:
    alpha: Any = file.metadata.get(_ALPHA, 0.0)
    if isinstance(alpha, bool) or not isinstance(alpha, int | float):
        raise AdapterError(
            f"{file.path}: `{_ALPHA}` must be a number, got {shown(alpha)}; convert the adapter again"
        )
    return float(alpha)


def _stored(tensor: GgufTensor) -> StoredTensor:
    kind = tensor.type.name
    if kind not in ITEM_BYTES and not can_dequantize(tensor.type):
        raise AdapterError(
            f"{tensor.path}: tensor {tensor.name} has type {kind}, which cannot be read; convert the adapter "
            "to F16"
        )
    blocks = tensor.type if kind not in ITEM_BYTES else None
    return StoredTensor(tensor.path, kind, tensor.shape, tensor.begin, tensor.end, blocks)
