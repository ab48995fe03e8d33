"""The weights of one decoder layer on one rank, as the loader hands them to whatever computes.

Everything here is final: offsets of norms are added, rows of interleaved rotations re-ordered. Norms, biases
and routers are fp32, matrices [out, in] of the dtype that was asked for. Heads, KV heads and inner features
are those of this rank, unless said otherwise.
"""

from dataclasses import dataclass

from torch import Tensor

from services.worker.engine.checkpoint.codes.encoded_matrix import Matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class NormWeights:
    """A norm.

    Attributes:
        weight: [size]; of a norm with own weights for each head [heads, head_dim].
        bias: Of the same shape.
    """

    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentWeights:
    """What multi-head latent attention has in place of queries, keys and values.

    Attributes:
        query_a: [query_rank, hidden], the same on all ranks; None: queries are made from the hidden state.
        query_a_norm: [query_rank].
        query_b: Of each head the rows that are not rotated, then those that are,
            [heads * (plain_dim + rope_dim), query_rank or hidden].
        kv_a: The latent vector's rows, then those of the rotated key part, [rank + rope_dim, hidden], the
            same on all ranks.
        kv_a_norm: [rank].
        kv_b: Of each head the rows of the key, then those of the value,
            [heads * (plain_dim + value_dim), rank].
    """

    query_a: Tensor | None
    query_a_norm: NormWeights | None
    query_b: Tensor
    kv_a: Tensor
    kv_a_norm: NormWeights
    kv_b: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWeights:
    """Attention.

    Attributes:
        qkv: Query heads, then key heads, then value heads, [(heads + 2 * KV heads) * head_dim, hidden]; None
            with latent attention.
        qkv_bias: In the same order.
        q_norm: Of queries, [head_dim], [heads, head_dim] or [heads * head_dim], by its scope.
        output: [hidden, heads * head_dim]; with latent attention [hidden, heads * value_dim].
        output_bias: [hidden], added once, after the ranks' sum.
        sinks: [heads].
        output_norm: [heads * head_dim].
        latent: None: plain grouped-query attention.
    """

    qkv: Matrix | None
    qkv_bias: Tensor | None = None
    q_norm: NormWeights | None = None
    k_norm: NormWeights | None = None
    output: Matrix
    output_bias: Tensor | None = None
    sinks: Tensor | None = None
    output_norm: NormWeights | None = None
    latent: LatentWeights | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpWeights:
    """A dense feed-forward layer.

    Attributes:
        gate_up: Gate rows, then up rows, [2 * inner, hidden]; [inner, hidden] if it is not gated.
        gate_up_bias: In the same order.
        down: [hidden, inner].
        down_bias: [hidden], added once, after the ranks' sum.
        inner_norm: [inner].
    """

    gate_up: Matrix
    gate_up_bias: Tensor | None = None
    down: Matrix
    down_bias: Tensor | None = None
    inner_norm: NormWeights | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsWeights:
    """A mixture of experts; every rank has the router and a share of each expert's inner features.

    Attributes:
        router: fp32 [experts, hidden].
        router_bias: [experts].
        selection_bias: [experts].
        gate_up: [experts, 2 * inner, hidden], or a matrix of codes for each expert.
        gate_up_bias: [experts, 2 * inner].
        down: [experts, hidden, inner].
        down_bias: [experts, hidden], the same on all ranks, of which one adds it.
        shared: The MLP that every token takes.
        shared_gate: [1, hidden].
    """

    router: Tensor
    router_bias: Tensor | None = None
    selection_bias: Tensor | None = None
    gate_up: Tensor | list[Matrix]
    gate_up_bias: Tensor | None = None
    down: Tensor | list[Matrix]
    down_bias: Tensor | None = None
    shared: MlpWeights | None = None
    shared_gate: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer; a norm that the layer does not have is None, and so is one of dense layers."""

    input_norm: NormWeights | None
    attention: AttentionWeights
    post_attention_norm: NormWeights | None = None
    mlp_norm: NormWeights | None
    mlp: MlpWeights | ExpertsWeights
    post_mlp_norm: NormWeights | None = None
