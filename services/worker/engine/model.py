"""The decoder: pre-norm blocks of attention and gated MLP, as in Llama (Touvron et al., 2023).

Reads like an ordinary model of one process. That weights are split over ranks shows only in the names of the
layers (`layers.py`); that sequences are batched and their KV is paged only in `batch.py` and `attention.py`.
"""

import torch.nn.functional as F
from torch import Tensor

from services.worker.engine.attention import paged_attention
from services.worker.engine.batch import Batch
from services.worker.engine.cache import KVCache, LayerCache
from services.worker.engine.collectives.base import Collectives
from services.worker.engine.config import ModelConfig
from services.worker.engine.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    Source,
    VocabParallelEmbedding,
    VocabParallelHead,
)
from services.worker.engine.rope import RotaryEmbedding, rotate
from services.worker.engine.weights import Checkpoint

Rotation = tuple[Tensor, Tensor]


class RMSNorm:
    """Root mean square normalisation (Zhang and Sennrich, 2019)."""

    def __init__(self, source: Source, name: str, config: ModelConfig) -> None:
        self.weight = source.checkpoint.read(f"{name}.weight", (config.hidden_size,))
        self.shape = (config.hidden_size,)
        self.eps = config.norm_eps

    def __call__(self, hidden: Tensor) -> Tensor:
        """[tokens, hidden], normalised along its last dimension."""
        return F.rms_norm(hidden, self.shape, self.weight, self.eps)


class Attention:
    """Causal grouped-query attention with rotary positions; this rank's heads."""

    def __init__(self, source: Source, name: str, config: ModelConfig) -> None:
        query_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        parts = [(f"{name}.q_proj", query_size), (f"{name}.k_proj", kv_size), (f"{name}.v_proj", kv_size)]
        self.qkv = ColumnParallelLinear.load(source, parts, config.hidden_size, config.attention_bias)
        shape = (config.hidden_size, query_size)
        self.output = RowParallelLinear.load(source, f"{name}.o_proj", shape, config.attention_bias)
        self.num_heads = config.num_heads // source.collectives.world
        self.num_kv_heads = config.num_kv_heads // source.collectives.world
        self.head_dim = config.head_dim

    def __call__(self, hidden: Tensor, rotation: Rotation, batch: Batch, cache: LayerCache) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]; the tokens' keys and values go into the cache."""
        heads, kv_heads = self.num_heads, self.num_kv_heads
        # [tokens, heads + 2 * kv heads, head_dim]
        qkv = self.qkv(hidden).view(hidden.shape[0], -1, self.head_dim)
        rotated = rotate(qkv[:, : heads + kv_heads], rotation)
        queries, keys, values = rotated[:, :heads], rotated[:, heads:], qkv[:, heads + kv_heads :]
        cache.write(batch.slots, keys, values)
        return self.output(paged_attention(queries, keys, values, batch, cache))


class MLP:
    """SwiGLU feed-forward layer (Shazeer, 2020)."""

    def __init__(self, source: Source, name: str, config: ModelConfig) -> None:
        hidden, inner = config.hidden_size, config.intermediate_size
        parts = [(f"{name}.gate_proj", inner), (f"{name}.up_proj", inner)]
        self.gate_up = ColumnParallelLinear.load(source, parts, hidden, config.mlp_bias)
        self.down = RowParallelLinear.load(source, f"{name}.down_proj", (hidden, inner), config.mlp_bias)

    def __call__(self, hidden: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        gate, up = self.gate_up(hidden).chunk(2, dim=-1)
        return self.down(F.silu(gate).mul_(up))


class DecoderLayer:
    """Attention, then MLP, each after a norm and added to the residual stream."""

    def __init__(self, source: Source, name: str, config: ModelConfig) -> None:
        self.attention_norm = RMSNorm(source, f"{name}.input_layernorm", config)
        self.attention = Attention(source, f"{name}.self_attn", config)
        self.mlp_norm = RMSNorm(source, f"{name}.post_attention_layernorm", config)
        self.mlp = MLP(source, f"{name}.mlp", config)

    def __call__(self, hidden: Tensor, rotation: Rotation, batch: Batch, cache: LayerCache) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        hidden = hidden + self.attention(self.attention_norm(hidden), rotation, batch, cache)
        return hidden.add_(self.mlp(self.mlp_norm(hidden)))


class Decoder:
    """This rank's share of the model.

    Args:
        checkpoint: Open weight files; only this rank's slices are read.
        config: The whole model's shape.
        collectives: Connects the ranks; its rank and world say which share this is.

    Raises:
        ModelError: the model does not divide by the number of ranks, or a tensor is missing or misshapen.
    """

    def __init__(self, checkpoint: Checkpoint, config: ModelConfig, collectives: Collectives) -> None:
        config.check_split(collectives.world)
        source = Source(checkpoint, collectives)
        table = (config.vocab_size, config.hidden_size)
        self.config = config
        self.embedding = VocabParallelEmbedding.load(source, "model.embed_tokens", table)
        self.layers = [
            DecoderLayer(source, f"model.layers.{index}", config) for index in range(config.num_layers)
        ]
        self.norm = RMSNorm(source, "model.norm", config)
        self.head = (
            VocabParallelHead(self.embedding.weight, config.vocab_size, collectives)
            if config.tied_embeddings
            else VocabParallelHead.load(source, "lm_head", table)
        )
        self.rotary = RotaryEmbedding(config.head_dim, config.rope_theta)

    def forward(self, batch: Batch, cache: KVCache) -> Tensor | None:
        """Logits [sampling slices, vocab] on rank 0; None on the others, and when nothing is sampled."""
        rotation = self.rotary.at(batch.positions)
        hidden = self.embedding(batch.token_ids)
        for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
            hidden = layer(hidden, rotation, batch, layer_cache)
        if not len(batch.sample_rows):
            return None
        return self.head(self.norm(hidden[batch.sample_rows]))
