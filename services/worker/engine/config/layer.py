"""What one decoder layer computes: norms, attention, and a dense MLP or experts.

Sizes are of the whole model, not of one rank. A default is what a layer of Llama has.
"""

from dataclasses import dataclass
from typing import Literal

from services.worker.engine.config.rope import RopeConfig

# silu, gelu, relu: as in torch; gelu_tanh: its approximation; relu2: relu squared
Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "clamped_swiglu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NormConfig:
    """A norm over the last dimension, computed in fp32.

    Attributes:
        kind: `rms` (Zhang and Sennrich, 2019) or `layer` (Ba et al., 2016), which subtracts the mean.
        eps: Added to the mean square, or to the variance.
        offset: Added to the stored weights when they are loaded: 1 where files hold w of (1 + w).
    """

    kind: Literal["rms", "layer"] = "rms"
    eps: float
    bias: bool = False
    offset: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryKeyNorm:
    """A norm of queries and keys before the rotation.

    Attributes:
        scope: Over what: `head`: head_dim, with the same weights [head_dim] for all heads; `heads`: head_dim,
            with own weights of each head, [heads, head_dim]; `all`: all heads of the model at once, with
            weights [heads * head_dim], so that ranks add up their sums of squares.
    """

    norm: NormConfig
    scope: Literal["head", "heads", "all"] = "head"


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentConfig:
    """Multi-head latent attention (DeepSeek-V2, 2024): keys and values come from one small vector a token.

    Cached are, for all heads at once, that vector after its norm and one rotated key part:
    `rank + rope_dim` numbers a token.

    Attributes:
        rank: Of the vector that keys and values are made from.
        query_rank: Of the vector that queries are made from; 0: queries are made from the hidden state.
        rope_dim: Rotated dimensions of a query, and of the key part that all heads share.
        plain_dim: Dimensions of a query or key that are not rotated.
        eps: Of the norms of the two vectors.
    """

    rank: int
    query_rank: int
    rope_dim: int
    plain_dim: int
    value_dim: int
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """Causal attention of one layer; how many heads there are is the same in all layers (`ModelConfig`).

    Attributes:
        scale: Of the scores, before the soft cap.
        rope: How queries and keys are rotated; None: not at all.
        window: How many last positions a token sees, itself included; 0: all.
        qkv_bias: Of the query, key and value linears.
        qk_norm: None: none.
        softcap: Scores become softcap * tanh(scores / softcap); 0: they do not.
        sinks: Each head has a learned logit that takes part in the softmax and has no value.
        alibi: Scores get slope * (key's position - query's position) (Press et al., 2022), unscaled.
        alibi_scale: By which those biases are multiplied.
        clip_qkv: Queries, keys and values are clipped to [-clip_qkv, clip_qkv] after their norms; 0: they are
            not.
        output_norm: Of all heads' mixed values before the output linear, over heads * head_dim.
        latent: None: plain grouped-query attention.
    """

    scale: float
    rope: RopeConfig | None
    window: int = 0
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: QueryKeyNorm | None = None
    softcap: float = 0.0
    sinks: bool = False
    alibi: bool = False
    alibi_scale: float = 1.0
    clip_qkv: float = 0.0
    output_norm: NormConfig | None = None
    latent: LatentConfig | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpConfig:
    """A dense feed-forward layer.

    Attributes:
        inner: Its inner features.
        activation: `clamped_swiglu` is gated: (min(up, 7) clamped below at -7, plus 1) * gate *
            sigmoid(1.702 * gate), with gate at most 7 (gpt-oss).
        gated: down(act(gate(x)) * up(x)); else down(act(up(x))).
        inner_norm: Before down, over the inner features of all ranks.
    """

    inner: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False
    down_bias: bool = False
    inner_norm: NormConfig | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """A mixture of experts: each token takes the best few of many small MLPs.

    Scores are computed in fp32 from the router's logits; the selected experts' outputs are added with their
    weights, in the order of the experts' numbers.

    Attributes:
        chosen: How many of them a token takes.
        expert: The shape of each.
        scoring: `softmax` over all logits, `sigmoid` of each, or `softmax_chosen`: over the chosen logits.
        normalize: The weights of the chosen ones are divided by their sum.
        scale: Then multiplied by this.
        groups: Experts are in so many groups of equal size; 1: no groups.
        chosen_groups: How many groups a token may take experts from.
        group_score: Of a group: its largest score, or the sum of its two largest.
        router_bias: The router's linear has a bias.
        selection_bias: A stored vector is added to the scores for the choice, not for the weights.
        shared: An MLP that every token takes beside its experts.
        shared_gate: Its output is multiplied by the sigmoid of a linear of the hidden state, to one number.
    """

    count: int
    chosen: int
    expert: MlpConfig
    scoring: Literal["softmax", "sigmoid", "softmax_chosen"] = "softmax"
    normalize: bool = False
    scale: float = 1.0
    groups: int = 1
    chosen_groups: int = 1
    group_score: Literal["max", "top2"] = "max"
    router_bias: bool = False
    selection_bias: bool = False
    shared: MlpConfig | None = None
    shared_gate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConfig:
    """One decoder layer, by its inputs and outputs.

    In sequence: x += scale * post_attention_norm(attention(input_norm(x))), then x += scale *
    post_mlp_norm(mlp(mlp_norm(x))). In parallel: x += attention(input_norm(x)) + mlp(mlp_norm(x)), both from
    the same x; without an mlp_norm both read input_norm(x). A norm that is None is left out.

    Attributes:
        mlp: Its MLP, or its experts.
        input_norm: Before attention.
        post_attention_norm: After attention.
        mlp_norm: Before the MLP.
        post_mlp_norm: After the MLP.
        parallel: Attention and MLP read the same x.
        residual_scale: Multiplies what both add to the stream.
    """

    attention: AttentionConfig
    mlp: MlpConfig | ExpertsConfig
    input_norm: NormConfig | None
    mlp_norm: NormConfig | None
    post_attention_norm: NormConfig | None = None
    post_mlp_norm: NormConfig | None = None
    parallel: bool = False
    residual_scale: float = 1.0

    @property
    def dense_mlp(self) -> MlpConfig:
        """The MLP of a layer that has no experts."""
        if isinstance(self.mlp, ExpertsConfig):
            raise TypeError("the layer has experts")
        return self.mlp
