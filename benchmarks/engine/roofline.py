"""Counts the bytes that a decode step reads at least: every weight, and each sequence's keys and values.

With the machine's read bandwidth it bounds the speed of decoding; activations are small and stay in caches.
"""

from services.worker.engine import int8
from services.worker.engine.config.model_config import ModelConfig

WEIGHT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}


def weight_bytes(config: ModelConfig, precision: str) -> int:
    """Return the bytes of all linear layers and the output layer; other tensors are small."""
    hidden, inner = config.hidden_size, config.layers[0].dense_mlp.inner
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    matrices = [  # (outputs, inputs) of a layer
        (queries + 2 * keys, hidden),
        (hidden, queries),
        (2 * inner, hidden),
        (hidden, inner),
    ] * config.num_layers + [(config.vocab_size, hidden)]
    if precision == "int8":
        return sum(int8.packed_bytes(rows, columns) for rows, columns in matrices)
    return sum(rows * columns * WEIGHT_BYTES[precision] for rows, columns in matrices)


def kv_bytes(config: ModelConfig, batch: int, context: float, kv_format: str) -> float:
    """Return the bytes of keys and values of `batch` contexts; `kv_format` is as in `EngineInfo`."""
    seen = sum(min(context, window) if window else context for window in config.windows)
    return batch * seen * 2 * config.num_kv_heads * config.head_dim * WEIGHT_BYTES[kv_format]


def decode_bytes(config: ModelConfig, precision: str, batch: int, context: float, kv_format: str) -> float:
    """Return the bytes of one step, in which each sequence gets one token, over all ranks."""
    return weight_bytes(config, precision) + kv_bytes(config, batch, context, kv_format)
