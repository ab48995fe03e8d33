"""What the functions of all families share: sizes, norms, activations, kinds of layers, the whole model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from services.worker.engine.config.json_fields import JsonFields
from services.worker.engine.config.layer import Activation, ExpertsConfig, LayerConfig, NormConfig
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.rope import LAYER_KINDS

# several times those of the largest models: a damaged number is refused before memory is allocated for it
MAX_LAYERS = 1024
MAX_HEADS = 4096
MAX_HEAD_DIM = 4096
MAX_HIDDEN = 2**20
MAX_INTERMEDIATE = 2**24
MAX_VOCABULARY = 2**24
MAX_POSITIONS = 2**30
MAX_EXPERTS = 2**16
MAX_EXPERTS_IN_ALL = 2**17  # in all layers together; DeepSeek-V3 has 14,848

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes that every decoder has."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    positions: int


def read_shape(
    fields: JsonFields,
    *,
    positions: int | None = None,
    kv_heads: int = 0,
    head_dim: int = 0,
    own_head_dim: bool = True,
    grouped: bool = True,
) -> Shape:
    """The sizes, and their defaults in transformers.

    Args:
        positions: Tokens of the context, if the file does not say.
        kv_heads: If the file does not say; 0: as many as heads.
        head_dim: If the file does not say; 0: what the hidden size has for each head.
        grouped: There may be fewer KV heads than heads.
    """
    heads = fields.integer("num_attention_heads", most=MAX_HEADS)
    hidden = fields.integer("hidden_size", most=MAX_HIDDEN)
    groups = heads
    if grouped:
        if fields.named("num_key_value_heads") in fields.raw:  # null is as many as heads
            kv_heads = 0
        groups = fields.integer("num_key_value_heads", kv_heads or heads, most=MAX_HEADS)
    if heads % groups:
        raise fields.error("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    stated = own_head_dim and not fields.missing("head_dim")
    if not stated and not head_dim and hidden % heads:
        raise fields.error("hidden_size", f"a multiple of num_attention_heads ({heads})")
    dim = head_dim or hidden // heads
    if stated:
        dim = fields.integer("head_dim", most=MAX_HEAD_DIM)
    return Shape(
        hidden=hidden,
        layers=fields.integer("num_hidden_layers", most=MAX_LAYERS),
        heads=heads,
        kv_heads=groups,
        head_dim=dim,
        positions=fields.integer("max_position_embeddings", positions, most=MAX_POSITIONS),
    )


def rms_norm(fields: JsonFields, default: float = 1e-6, offset: float = 0.0) -> NormConfig:
    """Root-mean-square norms."""
    return NormConfig(eps=fields.number("rms_norm_eps", default), offset=offset)


def layer_norm(
    fields: JsonFields, name: str = "layer_norm_eps", *, bias: bool = True, offset: float = 0.0
) -> NormConfig:
    """Layer norms."""
    return NormConfig(kind="layer", eps=fields.number(name, 1e-5), bias=bias, offset=offset)


def activation(fields: JsonFields, default: str, name: str = "hidden_act") -> Activation:
    """The activation of MLPs."""
    return fields.choice(name, ACTIVATIONS, default)


def inner_size(fields: JsonFields, default: int | None = None, name: str = "intermediate_size") -> int:
    """Inner features of an MLP."""
    return fields.integer(name, default, most=MAX_INTERMEDIATE)


def optional_number(fields: JsonFields, name: str, default: float | None = None) -> float:
    """A number, or 0 where null switches something off."""
    if fields.get(name) is None and (name in fields.raw or default is None):
        return 0.0
    return fields.number(name, default)


def layer_kinds(fields: JsonFields, shape: Shape, default: Sequence[str]) -> tuple[str, ...]:
    """Whether each layer's attention is full or sliding; `default` where the file does not say."""
    kinds = fields.get("layer_types")
    if kinds is None:
        return tuple(default)
    if not isinstance(kinds, list) or len(kinds) != shape.layers:
        raise fields.error("layer_types", f"a list of {shape.layers} kinds, one for each layer")
    if any(kind not in LAYER_KINDS for kind in kinds):
        raise fields.error("layer_types", f"made of {' and '.join(LAYER_KINDS)}")
    return tuple(kinds)


def every(count: int, shape: Shape) -> tuple[str, ...]:
    """Full attention in every so manieth layer, sliding in all others."""
    return tuple(LAYER_KINDS[(index + 1) % count != 0] for index in range(shape.layers))


def window_of(fields: JsonFields, kinds: Sequence[str], default: int | None) -> int:
    """The window of sliding layers; 0 if there are none."""
    if LAYER_KINDS[1] not in kinds:
        fields.ignore("sliding_window")
        return 0
    if "sliding_window" in fields.raw:
        default = None  # null is no window
    if fields.missing("sliding_window") and default is None:
        raise fields.error("layer_types", "all full_attention, because the config gives no window in use")
    return fields.integer("sliding_window", default)


def decoder(
    fields: JsonFields,
    shape: Shape,
    layers: Sequence[LayerConfig],
    *,
    final_norm: NormConfig,
    tied: bool = False,
    context_length: int = 0,
    **more: Any,
) -> ModelConfig:
    """The whole model.

    Args:
        layers: From the first to the last.
        tied: Whether head and embedding are one, if the file does not say.
        context_length: In tokens; 0: what the rotary embedding makes of the stated length.
        more: Other fields of `ModelConfig`.
    """
    ropes = {layer.attention.rope for layer in layers} - {None}
    lengths = [rope.context_length(shape.positions) for rope in ropes if rope is not None]
    context_length = context_length or min(lengths, default=shape.positions)
    experts = sum(layer.mlp.count for layer in layers if isinstance(layer.mlp, ExpertsConfig))
    if experts > MAX_EXPERTS_IN_ALL:
        raise fields.error("num_hidden_layers", f"fewer: {experts} experts in all layers are too many")
    if context_length > MAX_POSITIONS:
        raise fields.error("max_position_embeddings", f"at most {MAX_POSITIONS} with its rope scaling")
    return ModelConfig(
        architecture=fields.raw["architectures"][0],
        vocab_size=fields.integer("vocab_size", most=MAX_VOCABULARY),
        hidden_size=shape.hidden,
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        context_length=context_length,
        layers=tuple(layers),
        final_norm=final_norm,
        tied_embeddings=fields.flag("tie_word_embeddings", tied),
        **more,
    )
