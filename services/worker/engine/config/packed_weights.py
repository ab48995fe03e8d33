"""Checks what `config.json` says of quantized weights; `checkpoint/codes` reads them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.worker.engine.config.json_fields import ModelError, read_json
from services.worker.model_files.json_files import shown

_BITS = (2, 3, 4, 8)
_FIRST_FORMAT, _SECOND_FORMAT = "gptq", "gptq_v2"
_PACKED, _BYTES = "pack-quantized", ("int-quantized", "float-quantized", "naive-quantized")
_MIXED = "mixed-precision"  # each group has its own format
_BLOCK = (128, 128)  # of eight-bit floats, if a file says nothing


@dataclass(frozen=True, slots=True)
class ByteForms:
    """What `config.json` says of weights of a byte or less.

    Attributes:
        block: Outputs and inputs of a scale, if scales are of blocks.
        divided: Ternary codes are divided by their scale.
    """

    block: tuple[int, int]
    divided: bool


def require_packed(path: Path, table: Mapping[str, Any]) -> None:
    """Check that a `quantization_config` is of a form that is read here.

    Raises:
        ModelError: It is another one.
    """
    method = table.get("quant_method")
    if method == "compressed-tensors":
        _require_compressed(path, table)
    elif method == "gptq":
        _require(path, table, "bits", *_BITS)
        _require(path, table, "checkpoint_format", None, _FIRST_FORMAT, _SECOND_FORMAT)
    elif method == "awq":
        _require(path, table, "bits", 4)
        _require(path, table, "version", None, "gemm", "GEMM")
        _require(path, table, "zero_point", None, True)
    elif method == "fp8":
        _require(path, table, "expert_dtype", None, "fp8")
    elif method == "bitnet":
        _require(path, table, "linear_class", None, "bitlinear", "autobitlinear")
        _require(path, table, "quantization_mode", None, "offline")
        _require(path, table, "use_rms_norm", None, False)
    elif method != "fbgemm_fp8":
        raise ModelError(
            f"{path}: weights of `quant_method` {shown(method)} are not read; take the model as GGUF, GPTQ, "
            "AWQ or compressed-tensors, or the original and quantize it with `ryz quantize`"
        )


def gptq_zeros_above(model: Path) -> int:
    """What GPTQ's zero points are above those that its files hold: 1 but in its second format.

    Raises:
        ModelError: `config.json` cannot be read.
    """
    return 0 if _quantization(model).get("checkpoint_format") == _SECOND_FORMAT else 1


def byte_forms(model: Path) -> ByteForms:
    """What `config.json` says of weights of a byte or less.

    Raises:
        ModelError: `config.json` cannot be read.
    """
    table = _quantization(model)
    groups = table.get("config_groups")
    structures = [table.get("weight_block_size")]
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        structures.append(weights.get("block_structure") if isinstance(weights, dict) else None)
    blocks = [
        (one[0], one[1])
        for one in structures
        if isinstance(one, list) and len(one) == 2 and all(type(size) is int and size > 0 for size in one)
    ]
    divided = table.get("quant_method") == "bitnet" and table.get("linear_class") != "autobitlinear"
    return ByteForms(block=(*blocks, _BLOCK)[0], divided=divided)


def _quantization(model: Path) -> Mapping[str, Any]:
    found = read_json(model / "config.json").get("quantization_config")
    return found if isinstance(found, dict) else {}


def _require(path: Path, table: Mapping[str, Any], name: str, *allowed: object) -> None:
    if table.get(name) not in allowed:
        raise ModelError(
            f"{path}: `quantization_config.{name}` is {shown(table.get(name))}; read are weights with "
            f"{' or '.join(shown(one) for one in allowed if one is not None)}"
        )


def _require_compressed(path: Path, table: Mapping[str, Any]) -> None:
    groups, form = table.get("config_groups"), table.get("format")
    wanted = form in {_PACKED, *_BYTES, _MIXED} and isinstance(groups, dict) and bool(groups)
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        wanted &= isinstance(weights, dict) and _is_read(group.get("format") or form, weights)
    sparsity = table.get("sparsity_config") or {"format": "dense"}
    wanted &= isinstance(sparsity, dict) and sparsity.get("format") == "dense"
    if not wanted or table.get("kv_cache_scheme") or table.get("transform_config"):
        raise ModelError(
            f"{path}: of compressed-tensors, integer weights of 2, 3, 4 and 8 bits in the form {_PACKED} and "
            f"weights of bytes in the forms {', '.join(_BYTES)} are read, without quantized KV; "
            f"the format here is {shown(form)}"
        )


def _is_read(form: object, weights: Mapping[str, Any]) -> bool:
    """Whether weights of a group can be read; quantized activations have no part in it."""
    kind, bits = weights.get("type", "int"), weights.get("num_bits")
    if form == _PACKED:
        return kind == "int" and bits in _BITS
    return form in _BYTES and ((kind in {"int", "float"} and bits == 8) or (kind == "int" and bits in _BITS))
