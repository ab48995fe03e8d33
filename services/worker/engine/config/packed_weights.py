"""Checks what `config.json` says of weights that are packed integers; `checkpoint/codes` reads them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.worker.engine.config.json_fields import ModelError

_BITS = (2, 4, 8)


def require_packed(path: Path, table: Mapping[str, Any]) -> None:
    """Check that a `quantization_config` of compressed-tensors is of the form that is read here.

    Raises:
        ModelError: It is another one.
    """
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
            "pack-quantized are read, without quantized activations or KV"
        )
