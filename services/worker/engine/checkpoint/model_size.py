"""Counts a model's parameters and the bytes of its weights and KV cache, from its shape alone.

`ryz up` and `ryz models show` choose precision and groups with it, so it imports no torch. `memory_check.py`
checks the same before a rank loads, from the files themselves.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from services.worker.engine import int8
from services.worker.engine.checkpoint.names.canonical import canonical_tensors
from services.worker.engine.checkpoint.rank_shares import share_of_mlp, share_of_vocabulary
from services.worker.engine.config.layer import AttentionConfig, ExpertsConfig, MlpConfig
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.precision import HALF_KV
from services.worker.rank_protocol.plan import BLOCK_SIZE
from services.worker.rank_protocol.run_config import Precision
from services.worker.rank_protocol.sliding_pool import PoolSizes, fitting_blocks, least_blocks, sliding_blocks

FP32_BYTES, FP16_BYTES = 4, 2
INT8_BYTES = 1 + int8.SCALE_BYTES / int8.SCALE_BLOCK

_FP32 = ("model.positions", "mlp.router")  # matrices that stay fp32


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Sizes of a whole model, whatever its ranks.

    Attributes:
        matrices: Weights that a precision of 8 bits applies to: all linears, and the output matrix.
        embedding: Weights of the embedding table, which stays as stored.
        others: Norms, biases, routers and learned positions, always fp32.
        tied: The output matrix is a packed copy of the embedding.
        stored_bytes: Of one weight as the files have it: 4 or 2.
        stored: The precision that the files have.
        code_bytes: Of one weight of a matrix with the precision `codes`, in the mean.
        kv_values: Numbers that one token adds to the KV cache.
        windowed_values: Those of them that belong to layers with a sliding window.
        window: Tokens that the widest of these layers see; 0 if no layer has a window.
        latent: The cache holds latent vectors.
        vocabulary: Number of tokens.
    """

    matrices: int
    embedding: int
    others: int
    tied: bool
    stored_bytes: int
    kv_values: int
    windowed_values: int = 0
    window: int = 0
    latent: bool = False
    vocabulary: int = 0
    stored: Precision = "fp32"
    code_bytes: float = FP32_BYTES

    @property
    def parameters(self) -> int:
        """Number of parameters; a tied output matrix counts once."""
        return self.matrices + self.embedding + self.others - (self.embedding if self.tied else 0)

    def weight_bytes(self, precision: str) -> int:
        """Bytes of the weights in memory."""
        if precision == "codes":  # a tied table is there once, and other tables are codes, too
            tables = 0 if self.tied else self.embedding
            return int((self.matrices + tables) * self.code_bytes + self.others * FP32_BYTES)
        each = {"int8": INT8_BYTES, "bf16": FP16_BYTES}.get(precision, self.stored_bytes)
        return int(self.matrices * each + self.embedding * self.stored_bytes + self.others * FP32_BYTES)

    def kv_token_bytes(self, precision: str) -> int:
        """Bytes that one token takes in the KV cache: floats with `fp32`, else halves."""
        return self.kv_values * _kv_item(precision)

    def windowed_token_bytes(self, precision: str) -> int:
        """The part of `kv_token_bytes` in layers with a sliding window."""
        return self.windowed_values * _kv_item(precision)

    def pools(self, tokens: int, token_budget: int, max_running: int) -> PoolSizes:
        """The pools of a KV cache of so many tokens, as ranks allocate them."""
        blocks = -(-tokens // BLOCK_SIZE)
        least = least_blocks(self.window, token_budget, max_running)
        return PoolSizes(blocks, sliding_blocks(blocks, least) if self.window else 0)

    def cache_bytes(self, pools: PoolSizes, precision: str) -> int:
        """Bytes of both pools."""
        saved = pools.num_blocks - pools.num_sliding if pools.num_sliding else 0
        each, windowed = self.kv_token_bytes(precision), self.windowed_token_bytes(precision)
        return BLOCK_SIZE * (pools.num_blocks * each - saved * windowed)

    def fitting_tokens(self, memory: int, precision: str, token_budget: int, max_running: int) -> int:
        """The most tokens whose KV cache fits into so many bytes, in whole blocks."""
        each, windowed = self.kv_token_bytes(precision), self.windowed_token_bytes(precision)
        if not windowed:
            return max(0, memory // each) // BLOCK_SIZE * BLOCK_SIZE
        least = least_blocks(self.window, token_budget, max_running)
        sizes = BLOCK_SIZE * (each - windowed), BLOCK_SIZE * windowed
        return max(0, fitting_blocks(memory, *sizes, least)) * BLOCK_SIZE


def _kv_item(precision: str) -> int:
    return FP16_BYTES if precision in HALF_KV else FP32_BYTES


def model_size(config: ModelConfig, stored_bytes: int = FP32_BYTES) -> ModelSize:
    """Count what a model of that shape has."""
    embedding = matrices = others = 0
    for tensor in canonical_tensors(config):
        if tensor.module == "model.embed_tokens":
            embedding += prod(tensor.shape)
        elif len(tensor.shape) == 2 and tensor.module not in _FP32:
            matrices += prod(tensor.shape)
        else:
            others += prod(tensor.shape)
    values = config.cached_heads * config.cached_values
    return ModelSize(
        matrices=matrices + (embedding if config.tied_embeddings else 0),
        embedding=embedding,
        others=others,
        tied=config.tied_embeddings,
        stored_bytes=stored_bytes,
        kv_values=values,
        windowed_values=values * sum(window > 0 for window in config.windows) // config.num_layers,
        window=max(config.windows),
        latent=config.latent,
        vocabulary=config.vocab_size,
    )


def weight_share(config: ModelConfig, ranks: Iterable[int], world: int) -> Fraction:
    """The part of a model's matrices that these of `world` ranks hold together.

    KV heads that ranks share are held several times, so that all ranks together may hold more than the model.
    """
    return Fraction(sum(_matrices(config, rank, world) for rank in ranks), _matrices(config, 0, 1))


def _matrices(config: ModelConfig, rank: int, world: int) -> int:
    """Weights of a rank's matrices."""
    total = 2 * len(share_of_vocabulary(config.vocab_size, rank, world)) * config.hidden_size
    for layer, count in Counter(config.layers).items():
        total += count * (
            _attention(config, layer.attention, rank, world) + _mlp(config, layer.mlp, rank, world)
        )
    return total


def _attention(config: ModelConfig, attention: AttentionConfig, rank: int, world: int) -> int:
    heads, hidden, latent = len(config.heads_of(rank, world)), config.hidden_size, attention.latent
    if latent is None:
        return 2 * (heads + len(config.kv_heads_of(rank, world))) * config.head_dim * hidden
    whole = hidden * (latent.query_rank + latent.rank + latent.rope_dim)
    queries = (latent.plain_dim + latent.rope_dim) * (latent.query_rank or hidden)
    return whole + heads * (
        queries + (latent.plain_dim + latent.value_dim) * latent.rank + latent.value_dim * hidden
    )


def _mlp(config: ModelConfig, mlp: MlpConfig | ExpertsConfig, rank: int, world: int) -> int:
    if isinstance(mlp, ExpertsConfig):
        shared = 0 if mlp.shared is None else _mlp(config, mlp.shared, rank, world)
        return mlp.count * _mlp(config, mlp.expert, rank, world) + shared
    return (3 if mlp.gated else 2) * len(share_of_mlp(mlp.inner, rank, world)) * config.hidden_size
