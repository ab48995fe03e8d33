"""Reads a model's shape from a Hugging Face `config.json`, and decides which families can be served.

The metadata of a GGUF file are read as the `config.json` that they stand for (`gguf/gguf_config.py`).

To add a family, write a function that makes its `ModelConfig` and enter it in `FAMILIES`. A variant that the
engine cannot compute yet also needs a field of `LayerConfig` or `ModelConfig`, and both decoders:
`plain/model.py` and `native/decoder.py`. All other configs are refused with a sentence that names the file
and the field.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from services.worker.engine.config.json_fields import JsonFields, ModelError, read_json
from services.worker.engine.config.layer_config import (
    AttentionConfig,
    LayerConfig,
    MlpConfig,
    NormConfig,
    QueryKeyNorm,
)
from services.worker.engine.config.model_config import ModelConfig
from services.worker.engine.config.rope_config import read_rope
from services.worker.gguf.gguf_config import hf_config
from services.worker.gguf.gguf_file import is_gguf, read_gguf
from services.worker.gguf.header_bytes import BadGguf
from services.worker.json_files import shown

# several times those of the largest models: a damaged number is refused before memory is allocated for it
MAX_LAYERS = 1024
MAX_HEADS = 4096
MAX_HEAD_DIM = 4096
MAX_HIDDEN = 2**20
MAX_INTERMEDIATE = 2**24
MAX_VOCABULARY = 2**24
MAX_POSITIONS = 2**30


def read_config(model: Path) -> ModelConfig:
    """The model's shape.

    Args:
        model: A directory in Hugging Face format, or a GGUF file.

    Raises:
        ModelError: No such directory or file, broken JSON, an unknown architecture, a wrong field.
    """
    path, raw = _read_fields(model)
    architectures = raw.get("architectures")
    known = ", ".join(FAMILIES)
    if not isinstance(architectures, list) or len(architectures) != 1:
        raise ModelError(f"{path}: `architectures` must name one of {known}, got {shown(architectures)}")
    family = FAMILIES.get(architectures[0]) if isinstance(architectures[0], str) else None
    if family is None:
        raise ModelError(f"{path}: architecture {shown(architectures[0])} is not supported; known: {known}")
    return family(JsonFields(path, raw))


def _read_fields(model: Path) -> tuple[Path, dict[str, Any]]:
    """The file with the config, and its fields under the names of Hugging Face."""
    if not is_gguf(model):
        return model / "config.json", read_json(model / "config.json")
    try:
        return model, hf_config(read_gguf(model, vocabulary=False))
    except BadGguf as error:
        raise ModelError(str(error)) from error


def _llama(fields: JsonFields) -> ModelConfig:
    fields = fields.with_defaults(max_position_embeddings=2048)
    if not fields.missing("sliding_window"):
        # implementations disagree on whether such a model has a window
        raise fields.error("sliding_window", "absent or null in a LlamaForCausalLM")
    bias = fields.flag("attention_bias")
    return _decoder(fields, qkv_bias=bias, output_bias=bias, mlp_bias=fields.flag("mlp_bias"))


def _mistral(fields: JsonFields) -> ModelConfig:
    fields = fields.with_defaults(max_position_embeddings=131072, num_key_value_heads=8, sliding_window=4096)
    window = 0 if fields.missing("sliding_window") else fields.integer("sliding_window")
    return _decoder(fields, window=window)


def _qwen2(fields: JsonFields) -> ModelConfig:
    fields = _qwen_defaults(fields)
    return _decoder(fields, qkv_bias=True, window=_qwen_window(fields), full_layers=_qwen_full_layers(fields))


def _qwen3(fields: JsonFields) -> ModelConfig:
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


FAMILIES: dict[str, Callable[[JsonFields], ModelConfig]] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
}


# what transformers assumes where a file says nothing
def _qwen_defaults(fields: JsonFields) -> JsonFields:
    return fields.with_defaults(
        max_position_embeddings=32768, num_key_value_heads=32, sliding_window=4096, max_window_layers=28
    )


def _qwen_window(fields: JsonFields) -> int:
    if not fields.flag("use_sliding_window") or fields.missing("sliding_window"):
        return 0
    return fields.integer("sliding_window")


def _qwen_full_layers(fields: JsonFields) -> int:
    """How many layers from the first have no window, where `layer_types` does not say."""
    return 0 if fields.raw["max_window_layers"] == 0 else fields.integer("max_window_layers")


def _decoder(
    fields: JsonFields,
    *,
    window: int = 0,
    full_layers: int = 0,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
) -> ModelConfig:
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
    norm = NormConfig(eps=fields.number("rms_norm_eps", 1e-6))
    inner = fields.integer("intermediate_size", most=MAX_INTERMEDIATE)
    attention = AttentionConfig(
        scale=head_dim**-0.5,
        rope=rope,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        qk_norm=QueryKeyNorm(norm=norm) if qk_norm else None,
    )
    mlp = MlpConfig(inner=inner, bias=mlp_bias, down_bias=mlp_bias)
    return ModelConfig(
        architecture=fields.raw["architectures"][0],
        vocab_size=fields.integer("vocab_size", most=MAX_VOCABULARY),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        context_length=context_length,
        layers=tuple(
            LayerConfig(attention=replace(attention, window=each), mlp=mlp, input_norm=norm, mlp_norm=norm)
            for each in _windows(fields, num_layers, window, full_layers)
        ),
        final_norm=norm,
        tied_embeddings=fields.flag("tie_word_embeddings"),
    )


def _windows(fields: JsonFields, num_layers: int, window: int, full_layers: int) -> tuple[int, ...]:
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


# fields of related families, with the values that do not change the computation
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


def _refuse_unsupported(fields: JsonFields) -> None:
    for name, neutral in _NEUTRAL.items():
        if not fields.missing(name) and fields.raw[name] not in neutral:
            wanted = " or ".join(repr(value) for value in neutral) if neutral else "absent or null"
            raise fields.error(name, f"{wanted}, because nothing else is supported")
