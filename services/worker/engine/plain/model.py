"""The decoder: pre-norm blocks of attention and gated MLP, as in Llama (Touvron et al., 2023) and relatives.

Reads like a model of a single process; the differences between families are in the config. The split over
ranks is in `layers.py` and `checkpoint/weight_loader.py`, batching and paged KV in `batch.py` and
`attention.py`.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from services.worker.engine.checkpoint.weight_files import Checkpoint
from services.worker.engine.checkpoint.weight_loader import (
    LayerWeights,
    WeightSource,
    load_embedding,
    load_final_norm,
    load_head,
    load_layer,
    open_source,
)
from services.worker.engine.collectives.base import Collectives
from services.worker.engine.config.model_config import ModelConfig
from services.worker.engine.plain.attention import paged_attention
from services.worker.engine.plain.batch import PlainBatch
from services.worker.engine.plain.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    VocabParallelHead,
)
from services.worker.engine.plain.placement import CPU, Placement
from services.worker.engine.plain.plain_cache import KVCache, PlainLayerCache
from services.worker.engine.plain.rope import RotaryEmbedding, rotate

Rotation = tuple[Tensor, Tensor]


class RMSNorm:
    """Root mean square normalisation (Zhang and Sennrich, 2019) along the last dimension."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.shape = tuple(weight.shape)
        self.eps = eps

    def __call__(self, hidden: Tensor) -> Tensor:
        """[..., size of the weight], normalised."""
        return F.rms_norm(hidden, self.shape, self.weight, self.eps)


class Attention:
    """Causal grouped-query attention with rotary positions; this rank's heads.

    Args:
        weights: Of the layer.
        config: The whole model's shape.
        collectives: Connects the ranks.
        window: How many last positions a token sees, itself included; 0 for all.
    """

    def __init__(
        self, weights: LayerWeights, config: ModelConfig, collectives: Collectives, window: int
    ) -> None:
        rank, world, eps = collectives.rank, collectives.world, config.final_norm.eps
        self.qkv = ColumnParallelLinear(weights.qkv, weights.qkv_bias)
        self.output = RowParallelLinear(weights.output, weights.output_bias, collectives)
        self.query_norm = None if weights.q_norm is None else RMSNorm(weights.q_norm, eps)
        self.key_norm = None if weights.k_norm is None else RMSNorm(weights.k_norm, eps)
        self.num_heads = len(config.heads_of(rank, world))
        self.num_kv_heads = len(config.kv_heads_of(rank, world))
        self.head_dim = config.head_dim
        self.window = window

    def __call__(
        self, hidden: Tensor, rotation: Rotation, batch: PlainBatch, cache: PlainLayerCache
    ) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]; the tokens' keys and values go into the cache."""
        heads, kv_heads = self.num_heads, self.num_kv_heads
        # [tokens, heads + 2 * kv heads, head_dim]
        qkv = self.qkv(hidden).view(hidden.shape[0], -1, self.head_dim)
        if self.query_norm is not None and self.key_norm is not None:
            qkv[:, :heads] = self.query_norm(qkv[:, :heads])
            qkv[:, heads : heads + kv_heads] = self.key_norm(qkv[:, heads : heads + kv_heads])
        rotated = rotate(qkv[:, : heads + kv_heads], rotation)
        queries, keys, values = rotated[:, :heads], rotated[:, heads:], qkv[:, heads + kv_heads :]
        cache.write(batch.slots, keys, values)
        return self.output(
            paged_attention(queries, keys, values, batch.attention_metadata[self.window], cache)
        )


class MLP:
    """SwiGLU feed-forward layer (Shazeer, 2020)."""

    def __init__(self, weights: LayerWeights, collectives: Collectives) -> None:
        self.gate_up = ColumnParallelLinear(weights.gate_up, weights.gate_up_bias)
        self.down = RowParallelLinear(weights.down, weights.down_bias, collectives)

    def __call__(self, hidden: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        gate, up = self.gate_up(hidden).chunk(2, dim=-1)
        return self.down(F.silu(gate).mul_(up))


class DecoderLayer:
    """Attention, then MLP, each after a norm and added to the residual stream."""

    def __init__(self, source: WeightSource, config: ModelConfig, index: int, placement: Placement) -> None:
        weights = _placed(load_layer(source, config, index, placement.dtype), placement)
        self.attention_norm = RMSNorm(weights.attention_norm, config.final_norm.eps)
        self.attention = Attention(weights, config, source.collectives, config.windows[index])
        self.mlp_norm = RMSNorm(weights.mlp_norm, config.final_norm.eps)
        self.mlp = MLP(weights, source.collectives)

    def __call__(
        self, hidden: Tensor, rotation: Rotation, batch: PlainBatch, cache: PlainLayerCache
    ) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        hidden = hidden + self.attention(self.attention_norm(hidden), rotation, batch, cache)
        return hidden.add_(self.mlp(self.mlp_norm(hidden)))


class Decoder:
    """This rank's share of the model.

    Args:
        checkpoint: Open weight files; only this rank's slices are read.
        config: The whole model's shape.
        collectives: Connects the ranks; its rank and world say which share this is.
        placement: Device and type of weights and activations.

    Attributes:
        after_layer: Called after each layer of a step, to count progress.

    Raises:
        ModelError: The model cannot be split over the number of ranks, or a tensor is missing or misshapen.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: ModelConfig,
        collectives: Collectives,
        placement: Placement = CPU,
    ) -> None:
        source, move, dtype = open_source(checkpoint, config, collectives), placement.move, placement.dtype
        first = source.own_token_ids(config.vocab_size).start
        self.config = config
        self.placement = placement
        self.embedding = VocabParallelEmbedding(
            move(load_embedding(source, config, dtype)), first, collectives
        )
        self.layers = [DecoderLayer(source, config, index, placement) for index in range(config.num_layers)]
        self.norm = RMSNorm(move(load_final_norm(source, config)), config.final_norm.eps)
        head = self.embedding.weight if config.tied_embeddings else move(load_head(source, config, dtype))
        self.head = VocabParallelHead(head, config.vocab_size, collectives)
        self.rotary = RotaryEmbedding(config.rope, config.context_length, placement)
        self.after_layer: Callable[[], None] = lambda: None

    def forward(self, batch: PlainBatch, cache: KVCache) -> Tensor | None:
        """Logits [sampling chunks, vocab] on rank 0; None on the others, and if nothing is sampled."""
        hidden = self.hidden_states(batch, cache)
        return self.head(self.norm(hidden[batch.sample_rows])) if len(batch.sample_rows) else None

    def hidden_states(self, batch: PlainBatch, cache: KVCache) -> Tensor:
        """The residual stream after the last layer, before the last norm, [tokens, hidden]."""
        rotation = self.rotary.at(batch.positions)
        hidden = self.embedding(batch.token_ids)
        for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
            hidden = layer(hidden, rotation, batch, layer_cache)
            self.after_layer()
        return hidden


def _placed(weights: LayerWeights, placement: Placement) -> LayerWeights:
    placed: dict[str, Any] = {
        field.name: placement.move_optional(getattr(weights, field.name)) for field in fields(weights)
    }
    return replace(weights, **placed)
