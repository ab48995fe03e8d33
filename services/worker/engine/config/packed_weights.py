"""Checks what `config.json` says of weights that are packed integers; `checkpoint/codes` reads them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.worker.engine.config.json_fields import ModelError, read_json
from services.worker.json_files import shown

_BITS = (2, 4, 8)
_FIRST_FORMAT, _SECOND_FORMAT = "gptq", "gptq_v2"


def require_packed(path: Path, table: Mapping[str, Any]) -> None:
    """Check that a `quantization_config` is of a form that is read here.

    Raises:
        ModelError: It is another one.
    """
    method = table.get("quant_method")
    if method == "compressed-tensors":
        _require_pack_quantized(path, table)
    elif method == "gptq":
        _require(path, table, "bits", *_BITS)
        _require(path, table, "checkpoint_format", None, _FIRST_FORMAT, _SECOND_FORMAT)
    elif method == "awq":
        _require(path, table, "bits", 4)
        _require(path, table, "version", None, "gemm", "GEMM")
        _require(path, table, "zero_point", None, True)
    else:
        raise ModelError(
            f"{path}: weights of `quant_method` {shown(method)} are not read; take the model as GGUF, GPTQ, "
            "AWQ or compressed-tensors' pack-quantized, or the original and quantize it with `ryz quantize`"
        )


def gptq_zeros_above(model: Path) -> int:
    """What GPTQ's zero points are above those that its files hold: 1 but in its second format.

    Raises:
        ModelError: `config.json` cannot be read.
    """
    quantized = read_json(model / "config.json").get("quantization_config")
    second = isinstance(quantized, dict) and quantized.get("checkpoint_format") == _SECOND_FORMAT
    return 0 if second else 1


def _require(path: Path, table: Mapping[str, Any], name: str, *allowed: object) -> None:
    if table.get(name) not in allowed:
        raise ModelError(
            f"{path}: `quantization_config.{name}` is {shown(table.get(name))}; read are weights with "
            f"{' or '.join(shown(one) for one in allowed if one is not None)}"
        )


def _require_pack_quantized(path: Path, table: Mapping[str, Any]) -> None:
    groups = table.get("config_groups")
    wanted = table.get("format") == "pack-quantized" and isinstance(groups, dict) and bool(groups)
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        wanted &= (
            isinstance(weights, dict)
            and weights.get("type", "int") == "int"
            and weights.get("num_bits") in _BITS
            and not group.get("input_activations")
            and group.get("format") in (None, "pack-quantized")
        )
    sparsity = table.get("sparsity_config") or {"format": "dense"}
    wanted &= isinstance(sparsity, dict) and sparsity.get("format") == "dense"
    if not wanted or table.get("kv_cache_scheme") or table.get("transform_config"):
        raise ModelError(
            f"{path}: of compressed-tensors, only integer weights of 2, 4 and 8 bits in the form "
            "pack-quantized are read, without quantized activations or KV; "
            f"the format here is {shown(table.get('format'))}"
        )
