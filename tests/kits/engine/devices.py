"""Models of every family, and the tolerated difference between two computations of one."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from services.worker.rank_protocol.rank_messages import (
    RankConfig,
)
from tests.kits.engine.rank_options import rank_config


def config(model: Path | str = "model", **changes: Any) -> RankConfig:
    fields: dict[str, Any] = {
        "threads": 1,
        "collectives": "nccl",
        "device": "cuda",
        "kv_cache_tokens": 0,
    }
    return rank_config(model, **(fields | changes))


def relative_error(found: list[Tensor], expected: list[Tensor]) -> float:
    """Root mean square of the differences, divided by that of the expected logits."""
    assert [rows.shape for rows in found] == [rows.shape for rows in expected]
    difference, size = torch.cat(found) - torch.cat(expected), torch.cat(expected)
    return float(difference.square().mean().sqrt() / size.square().mean().sqrt())


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "mistral": {"sliding_window": 20},
    "qwen3": {"tie_word_embeddings": True},
}


BF16_ERROR = 0.03  # relative, for these random models; transformers' own bf16 error is up to 0.024
