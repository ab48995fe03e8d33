"""Counts a model's parameters and the bytes of its weights and KV cache, from its shape alone.

`ryz up` and `ryz models show` choose precision and groups with it, so it imports no torch. `memory_check.py`
checks the same before a rank loads, from the files themselves.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from services.worker.engine import int8
from services.worker.engine.checkpoint.rank_shares import share_of_mlp, share_of_vocabulary
from services.worker.engine.config.model_config import ModelConfig

FP32_BYTES, FP16_BYTES = 4, 2
INT8_BYTES = 1 + int8.SCALE_BYTES / int8.SCALE_BLOCK


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Sizes of a whole model, whatever its ranks.

    Attributes:
        matrices: Weights that a precision of 8 bits applies to: all linears, and the output matrix.
        embedding: Weights of the embedding table, which stays as stored.
        others: Norms and biases, always fp32.
        tied: The output matrix is a packed copy of the embedding.
        stored_bytes: Of one weight as the files have it: 4 or 2.
        kv_values: Numbers that one token adds to the KV cache.
    """

    matrices: int
    embedding: int
    others: int
    tied: bool
    stored_bytes: int
    kv_values: int

    @property
    def parameters(self) -> int:
        """Number of parameters; a tied output matrix counts once."""
        return self.matrices + self.embedding + self.others - (self.embedding if self.tied else 0)

    def weight_bytes(self, quantize: str) -> int:
        """Bytes of the weights in memory, for `none` or `int8`."""
        each = INT8_BYTES if quantize == "int8" else self.stored_bytes
        return int(self.matrices * each + self.embedding * self.stored_bytes + self.others * FP32_BYTES)

    def kv_token_bytes(self, quantize: str) -> int:
        """Bytes that one token takes in the KV cache: halves beside 8-bit weights, else floats."""
        return self.kv_values * (FP16_BYTES if quantize == "int8" else FP32_BYTES)


def model_size(config: ModelConfig, stored_bytes: int = FP32_BYTES) -> ModelSize:
    """Count what a model of that shape has."""
    hidden, layers, attention = config.hidden_size, config.num_layers, config.layers[0].attention
    mlp = config.layers[0].dense_mlp
    inner = mlp.inner
    queries, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    embedding = config.vocab_size * hidden
    per_layer = hidden * (queries + 2 * kv) + queries * hidden + 3 * hidden * inner
    others = 2 * hidden
    others += (queries + 2 * kv) * attention.qkv_bias + hidden * attention.output_bias
    others += 2 * inner * mlp.bias + hidden * mlp.down_bias
    others += 2 * config.head_dim * (attention.qk_norm is not None)
    return ModelSize(
        matrices=layers * per_layer + embedding,
        embedding=embedding,
        others=layers * others + hidden,
        tied=config.tied_embeddings,
        stored_bytes=stored_bytes,
        kv_values=2 * kv * layers,
    )


def weight_share(config: ModelConfig, ranks: Iterable[int], world: int) -> Fraction:
    """The part of a model's matrices that these of `world` ranks hold together.

    KV heads that ranks share are held several times, so that all ranks together may hold more than the model.
    """
    return Fraction(sum(_matrices(config, rank, world) for rank in ranks), _matrices(config, 0, 1))


def _matrices(config: ModelConfig, rank: int, world: int) -> int:
    heads = 2 * len(config.heads_of(rank, world)) + 2 * len(config.kv_heads_of(rank, world))
    inner = len(share_of_mlp(config.layers[0].dense_mlp.inner, rank, world))
    token_ids = len(share_of_vocabulary(config.vocab_size, rank, world))
    rows = config.num_layers * (heads * config.head_dim + 3 * inner) + 2 * token_ids
    return rows * config.hidden_size
