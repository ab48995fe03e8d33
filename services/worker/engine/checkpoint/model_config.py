"""What a model looks like, read from a Hugging Face `config.json`.

Decides which architectures and which variants of them can be served, and refuses the rest with one sentence
that names the file and the field. A new family is one more entry in `FAMILIES`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.worker.engine.checkpoint.json_fields import Fields, ModelError, read_json
from services.worker.engine.checkpoint.rope_config import RopeConfig, read_rope
from services.worker.json_files import shown

# of any model so far, several times over: a damaged number is refused before lists and tensors are made of it
MAX_LAYERS = 1024
MAX_HEADS = 4096
MAX_HEAD_DIM = 4096
MAX_HIDDEN = 2**20
MAX_INTERMEDIATE = 2**24
MAX_VOCABULARY = 2**24
MAX_POSITIONS = 2**30

__all__ = ["FAMILIES", "ModelConfig", "ModelError", "RopeConfig", "read_config", "read_json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape of a decoder. `context_length` is in tokens; sizes are of the whole model, not of one rank.

    windows: per layer, how many last positions a token sees, itself included; 0 for all.
    qk_norm: queries and keys are RMS-normalised over head_dim before the rotation.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    rope: RopeConfig
    norm_eps: float
    tied_embeddings: bool
    windows: tuple[int, ...]
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False

    def heads_of(self, rank: int, world: int) -> range:
        """The query heads of a rank."""
        width = self.num_heads // world
        return range(rank * width, (rank + 1) * width)

    def kv_heads_of(self, rank: int, world: int) -> range:
        """The KV heads of a rank: its share, or the one that its query heads need where ranks are more."""
        if world > self.num_kv_heads:
            head = rank * self.num_kv_heads // world
            return range(head, head + 1)
        width = self.num_kv_heads // world
        return range(rank * width, (rank + 1) * width)

    def check_split(self, world: int) -> None:
        """Raises `ModelError` when the model cannot be split over that many ranks."""
        reason = self._obstacle(world)
        if reason is not None:
            fitting = [str(n) for n in range(1, self.num_heads + 1) if self._obstacle(n) is None]
            raise ModelError(f"tensor_parallel={world} {reason}; possible values: {', '.join(fitting)}")

    def _obstacle(self, world: int) -> str | None:
        if world < 1:
            return "is no number of ranks"
        sizes = {"num_attention_heads": self.num_heads, "intermediate_size": self.intermediate_size}
        for name, size in sizes.items():
            if size % world:
                return f"does not divide the model's {name}={size}"
        if self.num_kv_heads % world and world % self.num_kv_heads:
            return (
                f"neither divides the model's num_key_value_heads={self.num_kv_heads} nor is a multiple of it"
            )
        return None


def _llama(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(max_position_embeddings=2048)
    if not fields.missing("sliding_window"):
        # implementations disagree on whether such a model has a window
        raise fields.error("sliding_window", "absent or null in a LlamaForCausalLM")
    bias = fields.flag("attention_bias")
    return _decoder(fields, qkv_bias=bias, output_bias=bias, mlp_bias=fields.flag("mlp_bias"))


def _mistral(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(max_position_embeddings=131072, num_key_value_heads=8, sliding_window=4096)
    window = 0 if fields.missing("sliding_window") else fields.integer("sliding_window")
    return _decoder(fields, window=window)


def _qwen2(fields: Fields) -> ModelConfig:
    fields = _qwen_defaults(fields)
    return _decoder(fields, qkv_bias=True, window=_qwen_window(fields), full_layers=_qwen_full_layers(fields))


def _qwen3(fields: Fields) -> ModelConfig:
    fields = _qwen_defaults(fields).with_defaults(head_dim=128)
    bias = fields.flag("attention_bias")
    return _decoder(
        fields,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
        window=_qwen_window(fields),
        full_layers=_qwen_full_layers(fields),
    )


FAMILIES: dict[str, Callable[[Fields], ModelConfig]] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
}


# what transformers assumes where a file says nothing
def _qwen_defaults(fields: Fields) -> Fields:
    return fields.with_defaults(
        max_position_embeddings=32768, num_key_value_heads=32, sliding_window=4096, max_window_layers=28
    )


def _qwen_window(fields: Fields) -> int:
    if not fields.flag("use_sliding_window") or fields.missing("sliding_window"):
        return 0
    return fields.integer("sliding_window")


def _qwen_full_layers(fields: Fields) -> int:
    """How many layers from the first have no window, where `layer_types` does not say."""
    return 0 if fields.raw["max_window_layers"] == 0 else fields.integer("max_window_layers")


def _decoder(fields: Fields, *, window: int = 0, full_layers: int = 0, **variant: bool) -> ModelConfig:
    _refuse_unsupported(fields)
    num_heads = fields.integer("num_attention_heads", most=MAX_HEADS)
    hidden_size = fields.integer("hidden_size", most=MAX_HIDDEN)
    num_kv_heads = fields.integer("num_key_value_heads", num_heads, most=MAX_HEADS)
    if num_heads % num_kv_heads:
        raise fields.error("num_key_value_heads", f"a divisor of num_attention_heads ({num_heads})")
    if fields.missing("head_dim") and hidden_size % num_heads:
        raise fields.error("hidden_size", f"a multiple of num_attention_heads ({num_heads})")
    head_dim = fields.integer("head_dim", hidden_size // num_heads, most=MAX_HEAD_DIM)
    if head_dim % 2:
        raise fields.error("head_dim", "even")
    max_positions = fields.integer("max_position_embeddings", most=MAX_POSITIONS)
    num_layers = fields.integer("num_hidden_layers", most=MAX_LAYERS)
    rope = read_rope(fields, head_dim, max_positions)
    context_length = rope.context_length(max_positions)
    if context_length > MAX_POSITIONS:
        raise fields.error("max_position_embeddings", f"at most {MAX_POSITIONS} with its rope scaling")
    return ModelConfig(
        architecture=fields.raw["architectures"][0],
        vocab_size=fields.integer("vocab_size", most=MAX_VOCABULARY),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size", most=MAX_INTERMEDIATE),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        context_length=context_length,
        rope=rope,
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        tied_embeddings=fields.flag("tie_word_embeddings"),
        windows=_windows(fields, num_layers, window, full_layers),
        **variant,
    )


def _windows(fields: Fields, num_layers: int, window: int, full_layers: int) -> tuple[int, ...]:
    kinds = fields.raw.get("layer_types")
    if kinds is None:
        return tuple(window if index >= full_layers else 0 for index in range(num_layers))
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise fields.error("layer_types", f"a list of {num_layers} kinds, one for each layer")
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise fields.error("layer_types", "made of full_attention and sliding_attention")
        if kind == "sliding_attention" and not window:
            raise fields.error("layer_types", "all full_attention, because the config gives no window in use")
    windows = tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    if "max_window_layers" not in fields.raw and windows != (window,) * num_layers:
        raise fields.error("layer_types", "the same for all layers in this architecture")
    return windows


# fields of relatives of these models, with the values that leave the computation as it is
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "quantization_config": (),
    "compression_config": (),
    "attention_sinks": (False,),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "attention_chunk_size": (),
    "clip_qkv": (),
    "use_qk_norm": (False,),
    "qk_layernorm": (False,),
    "no_rope_layers": ([],),
    "embedding_multiplier": (1,),
    "attention_multiplier": (),
    "residual_multiplier": (1,),
    "logits_scaling": (1,),
    "logit_scale": (1,),
    "num_experts": (0, 1),
    "num_local_experts": (0, 1),
}


def _refuse_unsupported(fields: Fields) -> None:
    for name, neutral in _NEUTRAL.items():
        if not fields.missing(name) and fields.raw[name] not in neutral:
            wanted = " or ".join(repr(value) for value in neutral) if neutral else "absent or null"
            raise fields.error(name, f"{wanted}, because nothing else is supported")


def read_config(directory: Path) -> ModelConfig:
    """The model's shape.

    Raises:
        ModelError: no such directory or file, broken JSON, an unknown architecture, a wrong field.
    """
    path = directory / "config.json"
    raw = read_json(path)
    architectures = raw.get("architectures")
    known = ", ".join(FAMILIES)
    if not isinstance(architectures, list) or len(architectures) != 1:
        raise ModelError(f"{path}: `architectures` must name one of {known}, got {shown(architectures)}")
    family = FAMILIES.get(architectures[0]) if isinstance(architectures[0], str) else None
    if family is None:
        raise ModelError(f"{path}: architecture {shown(architectures[0])} is not supported; known: {known}")
    return family(Fields(path, raw))
