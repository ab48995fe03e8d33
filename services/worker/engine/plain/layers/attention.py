"""Causal grouped-query attention with everything that the families put around it; this rank's heads."""

from torch import Tensor

from services.worker.engine.adapters.plain_rows import LayerAdapters
from services.worker.engine.checkpoint.codes.encoded_matrix import decoded
from services.worker.engine.checkpoint.layer_weights import AttentionWeights, NormWeights
from services.worker.engine.collectives.base import Collectives
from services.worker.engine.config.layer import AttentionConfig, QueryKeyNorm
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.plain.batch import PlainBatch
from services.worker.engine.plain.layers.linears import ColumnParallelLinear, RowParallelLinear
from services.worker.engine.plain.layers.norms import Norm, SplitNorm
from services.worker.engine.plain.layers.paged_attention import paged_attention
from services.worker.engine.plain.layers.scores import score_rules
from services.worker.engine.plain.plain_cache import PlainLayerCache
from services.worker.engine.plain.rope import Rotations, rotate


class Attention:
    """Grouped-query attention of one layer."""

    def __init__(
        self, weights: AttentionWeights, config: AttentionConfig, shape: ModelConfig, collectives: Collectives
    ) -> None:
        assert weights.qkv is not None
        rank, world = collectives.rank, collectives.world
        own = shape.heads_of(rank, world)
        self.config = config
        self.num_heads = len(own)
        self.num_kv_heads = len(shape.kv_heads_of(rank, world))
        self.head_dim = shape.head_dim
        self.qkv = ColumnParallelLinear(decoded(weights.qkv), weights.qkv_bias, "qkv")
        self.output = RowParallelLinear(decoded(weights.output), weights.output_bias, collectives, "output")
        self.rules = score_rules(config, shape.num_heads, own, weights.sinks, decoded(weights.output).device)
        self.query_norm = _head_norm(config.qk_norm, weights.q_norm, shape.num_heads, shape, collectives)
        self.key_norm = _head_norm(config.qk_norm, weights.k_norm, shape.num_kv_heads, shape, collectives)
        self.output_norm = (
            SplitNorm(config.output_norm, weights.output_norm, shape.num_heads * shape.head_dim, collectives)
            if config.output_norm is not None and weights.output_norm is not None
            else None
        )

    def __call__(
        self,
        hidden: Tensor,
        rotations: Rotations,
        batch: PlainBatch,
        cache: PlainLayerCache,
        adapters: LayerAdapters | None = None,
    ) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]; the tokens' keys and values go into the cache."""
        config, heads = self.config, self.num_heads + self.num_kv_heads
        # [tokens, heads + 2 * kv heads, head_dim]
        qkv = self.qkv(hidden, adapters).view(hidden.shape[0], -1, self.head_dim)
        if self.query_norm is not None and self.key_norm is not None:
            qkv[:, : self.num_heads] = self.query_norm(qkv[:, : self.num_heads])
            qkv[:, self.num_heads : heads] = self.key_norm(qkv[:, self.num_heads : heads])
        if config.clip_qkv:
            qkv = qkv.clamp(-config.clip_qkv, config.clip_qkv)
        rotation = None if config.rope is None else rotations[config.rope]
        slots, rotated = batch.slots_of(config.window), qkv[:, :heads]
        if cache.kernels is not None:
            cache.kernels.rotate_and_store(qkv, rotation, slots, cache.keys, cache.values)
        elif rotation is not None:
            rotated = rotate(rotated, rotation)
        queries, keys, values = rotated[:, : self.num_heads], rotated[:, self.num_heads :], qkv[:, heads:]
        if cache.kernels is None:
            cache.write(slots, keys, values)
        metadata = batch.attention_metadata[config.window]
        mixed = paged_attention(queries, keys, values, metadata, cache=cache, rules=self.rules)
        return self.output(mixed if self.output_norm is None else self.output_norm(mixed), adapters)


class AllHeadsNorm:
    """A norm of queries or keys over all heads of the model, [tokens, heads of this rank, head_dim]."""

    def __init__(self, norm: SplitNorm) -> None:
        self._norm = norm

    def __call__(self, states: Tensor) -> Tensor:
        """Normalises them."""
        return self._norm(states.flatten(1)).view(states.shape)


def _head_norm(
    config: QueryKeyNorm | None,
    weights: NormWeights | None,
    heads: int,
    shape: ModelConfig,
    collectives: Collectives,
) -> Norm | AllHeadsNorm | None:
    """The norm of queries or keys, of which the model has so many heads."""
    if config is None or weights is None:
        return None
    if config.scope != "all":
        return Norm(config.norm, weights)
    # a KV head that several ranks have counts once
    rank, world = collectives.rank, collectives.world
    repeated = heads < world and rank * heads // world == (rank - 1) * heads // world
    return AllHeadsNorm(
        SplitNorm(config.norm, weights, heads * shape.head_dim, collectives, not (rank and repeated))
    )
