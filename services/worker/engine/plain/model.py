"""The decoder: layers of attention and MLP or experts on a residual stream, driven by the model's config.

Reads like a model of a single process; the differences between families are in the config. The parts are in
`layers/`, the split over ranks there and in `checkpoint/weight_loader.py`, batching in `batch_builder.py`.
"""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from torch import Tensor

from services.worker.engine.adapters.plain_rows import LayerAdapters, RowAdapters
from services.worker.engine.checkpoint.codes.encoded_matrix import decoded
from services.worker.engine.checkpoint.layer_weights import ExpertsWeights, MlpWeights, NormWeights
from services.worker.engine.checkpoint.weight_files import Checkpoint
from services.worker.engine.checkpoint.weight_loader import (
    WeightSource,
    load_embedding,
    load_final_norm,
    load_head,
    load_head_bias,
    load_layer,
    load_positions,
    open_source,
)
from services.worker.engine.collectives.base import Collectives
from services.worker.engine.config.layer import ExpertsConfig, MlpConfig
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.plain.batch import PlainBatch
from services.worker.engine.plain.layers.attention import Attention
from services.worker.engine.plain.layers.experts import Experts
from services.worker.engine.plain.layers.latent_attention import LatentAttention
from services.worker.engine.plain.layers.linears import VocabParallelEmbedding, VocabParallelHead
from services.worker.engine.plain.layers.mlp import Mlp
from services.worker.engine.plain.layers.norms import Norm, optional_norm
from services.worker.engine.plain.placement import CPU, Placement
from services.worker.engine.plain.plain_cache import KVCache, PlainLayerCache
from services.worker.engine.plain.rope import RotaryEmbedding, Rotations

# computed in fp32 everywhere
_FP32 = ("router", "router_bias", "selection_bias", "sinks")
T = TypeVar("T")


def placed(weights: T, placement: Placement) -> T:
    """Weights of a layer, or a part of them, there: matrices and biases in its type, norms in fp32."""
    moved: dict[str, Any] = {}
    for field in fields(weights):  # type: ignore[arg-type]
        value = getattr(weights, field.name)
        if isinstance(value, Tensor):
            keeps = isinstance(weights, NormWeights) or field.name in _FP32
            moved[field.name] = value.to(placement.device) if keeps else placement.move(value)
        elif is_dataclass(value):
            moved[field.name] = placed(value, placement)
    return replace(weights, **moved)  # type: ignore[type-var]


class DecoderLayer:
    """Attention and MLP, in sequence or in parallel, each between norms and added to the residual stream."""

    def __init__(self, source: WeightSource, config: ModelConfig, index: int, placement: Placement) -> None:
        weights = placed(load_layer(source, config, index, placement.dtype), placement)
        layer = self.config = config.layers[index]
        self.index = index
        self.input_norm = optional_norm(layer.input_norm, weights.input_norm)
        attention = Attention if layer.attention.latent is None else LatentAttention
        self.attention = attention(weights.attention, layer.attention, config, source.collectives)
        self.post_attention_norm = optional_norm(layer.post_attention_norm, weights.post_attention_norm)
        self.mlp_norm = optional_norm(layer.mlp_norm, weights.mlp_norm)
        self.mlp = _mlp(weights.mlp, layer.mlp, source.collectives)
        self.post_mlp_norm = optional_norm(layer.post_mlp_norm, weights.post_mlp_norm)

    def __call__(
        self,
        hidden: Tensor,
        rotations: Rotations,
        batch: PlainBatch,
        cache: PlainLayerCache,
        rows: RowAdapters | None = None,
    ) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        adapters = None if rows is None else rows.of_layer(self.index)
        normed = _after(self.input_norm, hidden)
        mixed = self.attention(normed, rotations, batch, cache, adapters)
        mixed = _after(self.post_attention_norm, mixed)
        if self.config.parallel:
            fed = normed if self.mlp_norm is None else self.mlp_norm(hidden)
            mixed = mixed + _after(self.post_mlp_norm, self._feed(fed, adapters))
            return self._add(hidden, mixed)
        hidden = self._add(hidden, mixed)
        fed = self._feed(_after(self.mlp_norm, hidden), adapters)
        return self._add(hidden, _after(self.post_mlp_norm, fed))

    def attends_in_place(self, cache: PlainLayerCache) -> bool:
        """Whether a kernel reads the keys of decodes where they are."""
        return cache.kernels is not None and self.attention.rules.plain

    def _feed(self, hidden: Tensor, adapters: LayerAdapters | None) -> Tensor:
        # adapters of experts are refused
        return self.mlp(hidden, adapters) if isinstance(self.mlp, Mlp) else self.mlp(hidden)

    def _add(self, hidden: Tensor, more: Tensor) -> Tensor:
        scale = self.config.residual_scale
        return hidden + more if scale == 1.0 else hidden + scale * more


class Decoder:
    """This rank's share of the model.

    Args:
        checkpoint: Open weight files; only this rank's slices are read.
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
            move(decoded(load_embedding(source, config, dtype))), first, collectives
        )
        self.positions = placement.move_optional(load_positions(source, config))
        self.layers = [DecoderLayer(source, config, index, placement) for index in range(config.num_layers)]
        self.norm = Norm(config.final_norm, placed(load_final_norm(source, config), placement))
        head = self.embedding.weight
        if not config.tied_embeddings:
            head = move(decoded(load_head(source, config, dtype)))
        head_bias = placement.move_optional(load_head_bias(source, config))
        self.head = VocabParallelHead(head, head_bias, config, collectives)
        ropes = {layer.attention.rope for layer in config.layers} - {None}
        self.rotaries = {
            rope: RotaryEmbedding(rope, config.context_length, placement) for rope in ropes if rope
        }
        self.after_layer: Callable[[], None] = lambda: None

    def forward(self, batch: PlainBatch, cache: KVCache) -> Tensor | None:
        """Logits [sampling chunks, vocab] on rank 0; None on the others, and if nothing is sampled."""
        hidden = self.hidden_states(batch, cache)
        return self.head(self.norm(hidden[batch.sample_rows])) if len(batch.sample_rows) else None

    def hidden_states(self, batch: PlainBatch, cache: KVCache, rows: RowAdapters | None = None) -> Tensor:
        """The residual stream after the last layer, before the last norm, [tokens, hidden]."""
        rotations = {rope: rotary.at(batch.positions) for rope, rotary in self.rotaries.items()}
        hidden = self.embedding(batch.token_ids)
        if self.config.embedding_scale != 1.0:
            hidden = hidden * self.config.embedding_scale
        if self.positions is not None:
            hidden = hidden + self.positions[batch.positions]
        for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
            hidden = layer(hidden, rotations, batch, layer_cache, rows)
            self.after_layer()
        return hidden


def _mlp(
    weights: MlpWeights | ExpertsWeights, config: MlpConfig | ExpertsConfig, collectives: Collectives
) -> Mlp | Experts:
    if isinstance(config, ExpertsConfig):
        assert isinstance(weights, ExpertsWeights)
        return Experts(weights, config, collectives)
    assert isinstance(weights, MlpWeights)
    return Mlp(weights, config, collectives)


def _after(norm: Norm | None, hidden: Tensor) -> Tensor:
    return hidden if norm is None else norm(hidden)
