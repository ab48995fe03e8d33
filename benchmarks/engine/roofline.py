"""Counts the bytes that a decode step reads at least: every weight, and each sequence's keys and values.

With the machine's read bandwidth it bounds the speed of decoding; activations are small and stay in caches.
"""

from services.worker.engine import int8
from services.worker.engine.config.layer import MlpConfig
from services.worker.engine.config.model import ModelConfig

WEIGHT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "codes": 0.5625}  # codes: of Q4_0, others have more


def weight_bytes(config: ModelConfig, precision: str, batch: int = 1) -> float:
    """Return the bytes of the linear layers and the output layer that a step reads; other tensors are small.

    Of experts those count that some of the tokens take, if all are taken equally often: their mean number.
    """
    hidden = config.hidden_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    total = _bytes(config.vocab_size, hidden, precision)
    for layer in config.layers:
        total += _bytes(queries + 2 * keys, hidden, precision) + _bytes(hidden, queries, precision)
        mlp = layer.mlp
        if isinstance(mlp, MlpConfig):
            total += _mlp_bytes(mlp, hidden, precision)
            continue
        idle = (1 - mlp.chosen / mlp.count) ** batch
        total += mlp.count * (1 - idle) * _mlp_bytes(mlp.expert, hidden, precision)
        if mlp.shared is not None:
            total += _mlp_bytes(mlp.shared, hidden, precision)
    return total


def _mlp_bytes(mlp: MlpConfig, hidden: int, precision: str) -> float:
    up = (1 + mlp.gated) * mlp.inner
    return _bytes(up, hidden, precision) + _bytes(hidden, mlp.inner, precision)


def _bytes(rows: int, columns: int, precision: str) -> float:
    return (
        int8.packed_bytes(rows, columns) if precision == "int8" else rows * columns * WEIGHT_BYTES[precision]
    )


def kv_bytes(config: ModelConfig, batch: int, context: float, kv_format: str) -> float:
    """Return the bytes of keys and values of `batch` contexts; `kv_format` is as in `EngineInfo`."""
    seen = sum(min(context, window) if window else context for window in config.windows)
    return batch * seen * 2 * config.num_kv_heads * config.head_dim * WEIGHT_BYTES[kv_format]


def decode_bytes(config: ModelConfig, precision: str, batch: int, context: float, kv_format: str) -> float:
    """Return the bytes of one step, in which each sequence gets one token, over all ranks."""
    return weight_bytes(config, precision, batch) + kv_bytes(config, batch, context, kv_format)
