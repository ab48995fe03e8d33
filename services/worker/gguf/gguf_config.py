"""Says what `config.json` would say of the model in a GGUF file: one place in the engine knows the families.

To add an architecture, enter it in `ARCHITECTURES` with a function that gives the fields of its own.
Architectures and keys that are not known here are refused by name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.worker.gguf.gguf_file import GgufFile
from services.worker.gguf.header_bytes import BadGguf
from services.worker.gguf.metadata_fields import MetadataFields
from services.worker.gguf.rope_keys import rope_config
from services.worker.json_files import shown

EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
MOST_LAYERS = 1024


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """How models of one `general.architecture` are stored.

    Attributes:
        variant: The fields of a Hugging Face config beyond those of all decoders, `architectures` among them.
        interleaved_heads: The rows of each query and key head are in pairs that are rotated together, where
            Hugging Face has the first halves of all pairs before the second ones.
    """

    variant: Callable[[MetadataFields], dict[str, Any]]
    interleaved_heads: bool = False


def architecture_of(file: GgufFile) -> GgufArchitecture:
    """What is known about the file's architecture.

    Raises:
        BadGguf: Nothing.
    """
    known = ARCHITECTURES.get(file.architecture)
    if known is None:
        raise BadGguf(
            f"{file.path}: architecture {shown(file.architecture)} is not supported; choose a model of "
            f"{', '.join(ARCHITECTURES)}"
        )
    return known


def hf_config(file: GgufFile) -> dict[str, Any]:
    """The fields of a Hugging Face `config.json` for this model.

    Raises:
        BadGguf: The architecture is unknown, a key is missing, of a wrong type, or not supported.
    """
    architecture = architecture_of(file)
    fields = MetadataFields(file)
    config = _decoder(fields) | architecture.variant(fields)
    for key, neutral in _NEUTRAL.items():
        fields.require(key, neutral)
    for key in _WITHOUT_EFFECT:
        fields.has(key)
    fields.refuse_unread()
    return config


def _decoder(fields: MetadataFields) -> dict[str, Any]:
    tensors = fields.file.tensors
    heads, hidden = fields.integer("attention.head_count"), fields.integer("embedding_length")
    context_length = fields.integer("context_length")
    config: dict[str, Any] = {
        "hidden_size": hidden,
        "intermediate_size": fields.integer("feed_forward_length"),
        "num_hidden_layers": num_layers(fields),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.integer("attention.head_count_kv", heads),
        "max_position_embeddings": context_length,
        # stored in fp32: the shortest decimal of it is what the config said
        "rms_norm_eps": float(str(np.float32(fields.number("attention.layer_norm_rms_epsilon")))),
        "vocab_size": _vocab_size(fields),
        "tie_word_embeddings": OUTPUT not in tensors,
        "hidden_act": "silu",
    }
    if fields.has("attention.key_length"):
        config["head_dim"] = head_dim(fields)
    fields.require("attention.value_length", (head_dim(fields),))
    return config | rope_config(fields, head_dim(fields), context_length)


def head_dim(fields: MetadataFields) -> int:
    """Values of a head."""
    width = fields.integer("embedding_length") // fields.integer("attention.head_count")
    return fields.integer("attention.key_length", max(1, width))


def num_layers(fields: MetadataFields) -> int:
    """How many decoder layers the model has."""
    return fields.integer("block_count", most=MOST_LAYERS)


def _vocab_size(fields: MetadataFields) -> int:
    """Rows of the embedding, which may be more than the tokens."""
    embedding = fields.file.tensors.get(EMBEDDING)
    if embedding is not None:
        return embedding.shape[0]
    tokens = fields.file.metadata.get("tokenizer.ggml.tokens")
    return fields.integer("vocab_size", len(tokens) if isinstance(tokens, list) else None)


def _llama(fields: MetadataFields) -> dict[str, Any]:
    """Llama, and Mistral, which llama.cpp's converter stores as Llama."""
    tensors = fields.file.tensors
    window = fields.integer("attention.sliding_window", 0, least=0)
    if window:
        return {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": window}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in tensors,
    }


def _qwen2(fields: MetadataFields) -> dict[str, Any]:
    fields.require("attention.sliding_window", (0,))
    return {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_sliding_window": False}


def _qwen3(fields: MetadataFields) -> dict[str, Any]:
    fields.require("attention.sliding_window", (0,))
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "use_sliding_window": False,
        "attention_bias": "blk.0.attn_q.bias" in fields.file.tensors,
    }


ARCHITECTURES: dict[str, GgufArchitecture] = {
    "llama": GgufArchitecture(_llama, interleaved_heads=True),
    "qwen2": GgufArchitecture(_qwen2),
    "qwen3": GgufArchitecture(_qwen3),
}

# keys of related architectures, with the values that do not change the computation; the first is the default
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "use_parallel_residual": (False,),
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.scale": (0,),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "embedding_scale": (0, 1),
    "residual_scale": (0, 1),
    "logit_scale": (0, 1),
    "pooling_type": (0,),
}
# `vocab_size` repeats the rows of the embedding; the other one names the source of a conversion
_WITHOUT_EFFECT = ("vocab_size", "tensor_data_layout")
