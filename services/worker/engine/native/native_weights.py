"""This rank's weights, packed for the kernels matrix by matrix as they are read."""

from dataclasses import dataclass

import torch
from torch import Tensor

from services.worker.engine.checkpoint.layer_weights import MlpWeights
from services.worker.engine.checkpoint.rank_shares import vocabulary_width
from services.worker.engine.checkpoint.weight_loader import (
    WeightSource,
    load_embedding,
    load_final_norm,
    load_head,
    load_layer,
)
from services.worker.engine.config.model_config import ModelConfig
from services.worker.engine.native.library import KernelLibrary
from services.worker.engine.native.packed_weights import PackedLinear, pack, padded, vector


@dataclass(frozen=True, slots=True)
class NativeLayer:
    """One decoder layer; norms and biases padded to whole registers."""

    attention_norm: Tensor
    qkv: PackedLinear
    qk_norms: tuple[Tensor, Tensor] | None
    output: PackedLinear
    output_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: PackedLinear
    down: PackedLinear
    down_bias: Tensor | None


@dataclass(frozen=True, slots=True)
class NativeWeights:
    """All weights of a rank.

    Attributes:
        embedding: [ids of this rank, hidden], as stored.
        first_id: The first token id of this rank.
        layers: In their order.
        norm: Before the head.
        head: Of the same ids, padded to the widest rank's.
        quantized: Matrices are bytes.
        step_bytes: Weights that a decode step reads, without the few rows of the embedding.
    """

    embedding: Tensor
    first_id: int
    layers: list[NativeLayer]
    norm: Tensor
    head: PackedLinear
    quantized: bool
    step_bytes: int

    @classmethod
    def load(
        cls, source: WeightSource, config: ModelConfig, kernels: KernelLibrary, quantized: bool
    ) -> "NativeWeights":
        """Reads and packs this rank's share.

        Args:
            source: Of the weights.
            config: The whole model's shape.
            kernels: Compiled for this machine.
            quantized: Packs matrices as bytes; the embedding stays as stored.

        Raises:
            ModelError: A tensor cannot be read.
        """
        dtype = torch.float32 if quantized else None
        layers = [_layer(source, config, index, kernels, dtype) for index in range(config.num_layers)]
        embedding = load_embedding(source, config, None)
        matrix = embedding if config.tied_embeddings else load_head(source, config, dtype)
        missing = vocabulary_width(config.vocab_size, source.collectives.world) - matrix.shape[0]
        if missing:
            matrix = torch.cat((matrix, matrix.new_zeros(missing, matrix.shape[1])))
        head = pack(kernels, matrix, int8=quantized)
        linears = [
            linear for layer in layers for linear in (layer.qkv, layer.output, layer.gate_up, layer.down)
        ]
        return cls(
            embedding=embedding,
            first_id=source.own_token_ids(config.vocab_size).start,
            layers=layers,
            norm=vector(load_final_norm(source, config).weight),
            head=head,
            quantized=quantized,
            step_bytes=sum(linear.num_bytes for linear in (*linears, head)),
        )


def _layer(
    source: WeightSource, config: ModelConfig, index: int, kernels: KernelLibrary, dtype: torch.dtype | None
) -> NativeLayer:
    layer, int8 = load_layer(source, config, index, dtype), dtype is not None
    width = padded(config.hidden_size)
    attention, mlp = layer.attention, layer.mlp
    assert layer.input_norm is not None
    assert layer.mlp_norm is not None
    assert attention.qkv is not None
    assert isinstance(mlp, MlpWeights)
    norms = None
    if attention.q_norm is not None and attention.k_norm is not None:
        norms = (vector(attention.q_norm.weight), vector(attention.k_norm.weight))
    return NativeLayer(
        attention_norm=vector(layer.input_norm.weight),
        qkv=pack(kernels, attention.qkv, attention.qkv_bias, int8=int8),
        qk_norms=norms,
        output=pack(kernels, attention.output, int8=int8),
        output_bias=None if attention.output_bias is None else vector(attention.output_bias, width),
        mlp_norm=vector(layer.mlp_norm.weight),
        gate_up=pack(kernels, mlp.gate_up, mlp.gate_up_bias, int8=int8, gated=True),
        down=pack(kernels, mlp.down, int8=int8),
        down_bias=None if mlp.down_bias is None else vector(mlp.down_bias, width),
    )
