"""The weights of one decoder layer, packed for the kernels."""

from dataclasses import dataclass

import torch
from torch import Tensor

from services.worker.engine.checkpoint.layer_weights import AttentionWeights, ExpertsWeights, MlpWeights
from services.worker.engine.checkpoint.weight_loader import WeightSource, load_layer
from services.worker.engine.config.layer import (
    AttentionConfig,
    ExpertsConfig,
    LayerConfig,
    MlpConfig,
)
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.native.experts.packed_experts import PackedExperts, pack_experts
from services.worker.engine.native.layers.packed_norm import PackedNorm, pack_norm
from services.worker.engine.native.library import KernelLibrary
from services.worker.engine.native.packed_weights import PackedLinear, pack, padded, vector
from services.worker.engine.native.structs.rows import ActivationKind, OutputRule
from services.worker.engine.plain.layers.scores import alibi_slopes
from services.worker.rank_protocol.run_config import Precision

_ACTIVATIONS = {
    "silu": ActivationKind.SILU,
    "gelu": ActivationKind.GELU,
    "gelu_tanh": ActivationKind.GELU_TANH,
    "relu": ActivationKind.RELU,
    "relu2": ActivationKind.RELU2,
    "clamped_swiglu": ActivationKind.CLAMPED_SWIGLU,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeAttention:
    """Attention of one layer; norms and biases padded to whole registers.

    Attributes:
        qkv: Queries, keys and values.
        output: Without its bias, which the residual op adds.
        output_bias: [padded hidden].
        query_norm: Of each head by itself, or of all heads.
        key_norm: The same.
        sinks: [padded heads].
        slopes: ALiBi's, [padded heads].
        output_norm: [padded heads * head_dim].
    """

    qkv: PackedLinear
    output: PackedLinear
    output_bias: Tensor | None
    query_norm: PackedNorm | None
    key_norm: PackedNorm | None
    sinks: Tensor | None
    slopes: Tensor | None
    output_norm: PackedNorm | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeMlp:
    """A dense feed-forward layer.

    Attributes:
        up: With the gate, if there is one, and with the activation.
        down: Without its bias.
        down_bias: [padded hidden].
        inner_norm: [padded inner].
        inner: Inner features of all ranks.
    """

    up: PackedLinear
    down: PackedLinear
    down_bias: Tensor | None
    inner_norm: PackedNorm | None
    inner: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeLayer:
    """One decoder layer; a norm that it does not have is None.

    Attributes:
        mlp: The MLP; of a layer with experts the one that every token takes, or None.
        experts: None: the layer is dense.
    """

    config: LayerConfig
    input_norm: PackedNorm | None
    attention: NativeAttention
    post_attention_norm: PackedNorm | None
    mlp_norm: PackedNorm | None
    mlp: NativeMlp | None
    experts: PackedExperts | None
    post_mlp_norm: PackedNorm | None

    @property
    def down_bias(self) -> Tensor | None:
        """What is added once to the sum of the ranks' parts of the MLP."""
        return None if self.mlp is None else self.mlp.down_bias

    @property
    def linears(self) -> list[PackedLinear]:
        """Its matrices, of experts the first one's, without the router."""
        linears = [self.attention.qkv, self.attention.output]
        if self.mlp is not None:
            linears += [self.mlp.up, self.mlp.down]
        if self.experts is not None:
            linears += [self.experts.up.first, self.experts.down.first]
        return linears


def pack_layer(
    source: WeightSource, config: ModelConfig, index: int, kernels: KernelLibrary, *, precision: Precision
) -> NativeLayer:
    """Reads and packs this rank's share of a layer."""
    layer = config.layers[index]
    weights = load_layer(source, config, index, torch.float32 if precision == "int8" else None)
    own = config.heads_of(source.collectives.rank, source.collectives.world)
    slopes = alibi_slopes(config.num_heads)[own.start : own.stop] if layer.attention.alibi else None
    return NativeLayer(
        config=layer,
        input_norm=pack_norm(layer.input_norm, weights.input_norm),
        attention=_pack_attention(kernels, layer.attention, weights.attention, slopes, precision=precision),
        post_attention_norm=pack_norm(layer.post_attention_norm, weights.post_attention_norm),
        mlp_norm=pack_norm(layer.mlp_norm, weights.mlp_norm),
        mlp=_pack_shared(kernels, layer.mlp, weights.mlp, precision=precision),
        experts=_pack_experts(kernels, layer.mlp, weights.mlp, source.collectives.rank, precision=precision),
        post_mlp_norm=pack_norm(layer.post_mlp_norm, weights.post_mlp_norm),
    )


def _pack_attention(
    kernels: KernelLibrary,
    config: AttentionConfig,
    weights: AttentionWeights,
    slopes: Tensor | None,
    *,
    precision: Precision,
) -> NativeAttention:
    assert weights.qkv is not None
    head_norm = None if config.qk_norm is None else config.qk_norm.norm
    return NativeAttention(
        qkv=pack(kernels, weights.qkv, weights.qkv_bias, precision=precision),
        output=pack(kernels, weights.output, precision=precision),
        output_bias=_row_bias(weights.output_bias),
        query_norm=pack_norm(head_norm, weights.q_norm),
        key_norm=pack_norm(head_norm, weights.k_norm),
        sinks=None if weights.sinks is None else vector(weights.sinks),
        slopes=None if slopes is None else vector(config.alibi_scale * slopes),
        output_norm=pack_norm(config.output_norm, weights.output_norm),
    )


def _rule(config: MlpConfig) -> OutputRule:
    return OutputRule(activation=_ACTIVATIONS[config.activation], gated=config.gated)


def _pack_shared(
    kernels: KernelLibrary,
    config: MlpConfig | ExpertsConfig,
    weights: MlpWeights | ExpertsWeights,
    *,
    precision: Precision,
) -> NativeMlp | None:
    """The MLP that every token takes."""
    if isinstance(config, ExpertsConfig):
        assert isinstance(weights, ExpertsWeights)
        if config.shared is None or weights.shared is None:
            return None
        return _pack_mlp(kernels, config.shared, weights.shared, precision=precision)
    assert isinstance(weights, MlpWeights)
    return _pack_mlp(kernels, config, weights, precision=precision)


def _pack_experts(
    kernels: KernelLibrary,
    config: MlpConfig | ExpertsConfig,
    weights: MlpWeights | ExpertsWeights,
    rank: int,
    *,
    precision: Precision,
) -> PackedExperts | None:
    if not isinstance(config, ExpertsConfig):
        return None
    assert isinstance(weights, ExpertsWeights)
    rule = _rule(config.expert)
    return pack_experts(kernels, config, weights, rule, precision=precision, first_rank=rank == 0)


def _pack_mlp(
    kernels: KernelLibrary, config: MlpConfig, weights: MlpWeights, *, precision: Precision
) -> NativeMlp:
    rule = _rule(config)
    return NativeMlp(
        up=pack(kernels, weights.gate_up, weights.gate_up_bias, precision=precision, rule=rule),
        down=pack(kernels, weights.down, precision=precision),
        down_bias=_row_bias(weights.down_bias),
        inner_norm=pack_norm(config.inner_norm, weights.inner_norm),
        inner=config.inner,
    )


def _row_bias(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else vector(bias, padded(len(bias)))
