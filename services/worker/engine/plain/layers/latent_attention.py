"""Multi-head latent attention (DeepSeek-V2, 2024), in its absorbed form.

A key of head h is B_h c + shared rotated part, its value is V_h c, with c the cached latent vector. B_h is
multiplied with the queries and V_h with the mix, so attention is that of all heads to one KV head: keys
[c, rotated part], values c. The same cache serves any number of ranks.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from services.worker.engine.adapters.plain_rows import LayerAdapters
from services.worker.engine.checkpoint.codes.encoded_matrix import decoded
from services.worker.engine.checkpoint.layer_weights import AttentionWeights
from services.worker.engine.collectives.base import Collectives
from services.worker.engine.config.layer import AttentionConfig, NormConfig
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.plain.batch import PlainBatch
from services.worker.engine.plain.layers.linears import ColumnParallelLinear, RowParallelLinear
from services.worker.engine.plain.layers.norms import Norm, optional_norm
from services.worker.engine.plain.layers.paged_attention import paged_attention
from services.worker.engine.plain.layers.scores import score_rules
from services.worker.engine.plain.plain_cache import PlainLayerCache
from services.worker.engine.plain.rope import Rotations, rotate


class LatentAttention:
    """Latent attention of one layer; this rank's heads."""

    def __init__(
        self, weights: AttentionWeights, config: AttentionConfig, shape: ModelConfig, collectives: Collectives
    ) -> None:
        assert config.latent is not None
        assert weights.latent is not None
        latent, parts = config.latent, weights.latent
        own = shape.heads_of(collectives.rank, collectives.world)
        self.config = config
        self.latent = latent
        self.rules = score_rules(config, shape.num_heads, own, weights.sinks, decoded(weights.output).device)
        norm = NormConfig(eps=latent.eps)
        self.query_a = parts.query_a
        self.query_a_norm = optional_norm(norm, parts.query_a_norm)
        self.query_b = ColumnParallelLinear(parts.query_b, None, "query_b")
        self.kv_a = parts.kv_a
        self.kv_a_norm = Norm(norm, parts.kv_a_norm)
        # [heads, plain_dim + value_dim, rank]
        by_head = parts.kv_b.view(len(own), -1, latent.rank)
        self.to_key, self.to_value = torch.split(by_head, [latent.plain_dim, latent.value_dim], dim=1)
        self.output = RowParallelLinear(decoded(weights.output), weights.output_bias, collectives, "output")

    def __call__(
        self,
        hidden: Tensor,
        rotations: Rotations,
        batch: PlainBatch,
        cache: PlainLayerCache,
        adapters: LayerAdapters | None = None,
    ) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]; the tokens' latent vectors go into the cache."""
        assert self.config.rope is not None
        latent, rotation = self.latent, rotations[self.config.rope]
        keys = F.linear(hidden, self.kv_a)
        vectors, shared = torch.split(keys.unsqueeze(1), [latent.rank, latent.rope_dim], dim=-1)
        keys = torch.cat((self.kv_a_norm(vectors), rotate(shared, rotation)), dim=-1)
        values = keys[..., : latent.rank]
        cache.write(batch.slots_of(self.config.window), keys, values)
        metadata = batch.attention_metadata[self.config.window]
        mixed = paged_attention(
            self._queries(hidden, rotation), keys, values, metadata, cache=cache, rules=self.rules
        ).view(hidden.shape[0], -1, latent.rank)
        # [heads, tokens, rank] x [heads, rank, value_dim]
        by_head = mixed.transpose(0, 1) @ self.to_value.transpose(1, 2)
        return self.output(by_head.transpose(0, 1).flatten(1), adapters)

    def _queries(self, hidden: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """[tokens, heads, rank + rope_dim], as the cached keys are."""
        if self.query_a is not None:
            hidden = F.linear(hidden, self.query_a)
            hidden = hidden if self.query_a_norm is None else self.query_a_norm(hidden)
        latent = self.latent
        by_head = self.query_b(hidden).view(hidden.shape[0], -1, latent.plain_dim + latent.rope_dim)
        plain, rotated = torch.split(by_head, [latent.plain_dim, latent.rope_dim], dim=-1)
        # [heads, tokens, plain_dim] x [heads, plain_dim, rank]
        absorbed = (plain.transpose(0, 1) @ self.to_key).transpose(0, 1)
        return torch.cat((absorbed, rotate(rotated, rotation)), dim=-1)
