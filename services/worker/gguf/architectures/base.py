"""What most architectures of GGUF files have in common."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.worker.gguf.metadata_fields import MetadataFields
from services.worker.gguf.rope_keys import rope_config

EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
MOST_LAYERS = 1024
Config = dict[str, Any]


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """How models of one `general.architecture` are stored.

    Attributes:
        variant: The fields of a Hugging Face config beyond those of all decoders, `architectures` among them.
        interleaved_heads: The rows of each query and key head are in pairs that are rotated together, where
            ranks have the first halves of all pairs before the second ones.
        fused_gate: The gate's rows stand before those of `ffn_up`, in one tensor.
        mlp_norm: The tensor with the norm before the MLP.
        input_norm: The tensor with the norm before attention, where there is one of that name; else it is
            `attn_norm`.
        without: Fields of all decoders that a config of this family does not have; their values are those
            that follow from its other fields.
        later_layers: Files may have layers beyond the last, which are not read.
    """

    variant: Callable[[MetadataFields], Config]
    interleaved_heads: bool = False
    fused_gate: bool = False
    mlp_norm: str = "ffn_norm"
    input_norm: str = "attn_norm"
    without: tuple[str, ...] = ()
    later_layers: bool = False


def decoder_fields(fields: MetadataFields) -> Config:
    """The fields that all decoders have."""
    heads = fields.integer("attention.head_count")
    config: Config = {
        "hidden_size": fields.integer("embedding_length"),
        "num_hidden_layers": num_layers(fields),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.integer("attention.head_count_kv", heads),
        "max_position_embeddings": fields.integer("context_length"),
        "vocab_size": _vocab_size(fields),
        "tie_word_embeddings": OUTPUT not in fields.file.tensors,
        "hidden_act": "silu",
    }
    for key in ("feed_forward_length", "expert_feed_forward_length"):
        if fields.has(key) or key == "feed_forward_length":
            config.setdefault("intermediate_size", fields.integer(key))
    if fields.has("attention.layer_norm_rms_epsilon"):
        config["rms_norm_eps"] = shortest(fields.number("attention.layer_norm_rms_epsilon"))
    if fields.has("attention.key_length"):
        config["head_dim"] = head_dim(fields)
    return config


def with_rope(fields: MetadataFields, *, lists: bool = False) -> Config:
    """The fields of the rotary embedding, of models whose values are as wide as their keys.

    With `lists` the architecture reads lists of factors itself.
    """
    fields.require("attention.value_length", (head_dim(fields),))
    return rope_config(fields, head_dim(fields), fields.integer("context_length"), lists=lists)


def head_dim(fields: MetadataFields) -> int:
    """Values of a head."""
    width = fields.integer("embedding_length") // fields.integer("attention.head_count")
    return fields.integer("attention.key_length", max(1, width))


def num_layers(fields: MetadataFields) -> int:
    """How many decoder layers the model has."""
    return fields.integer("block_count", most=MOST_LAYERS)


def layer_norm_eps(fields: MetadataFields) -> float:
    """Epsilon of norms that subtract the mean."""
    return shortest(fields.number("attention.layer_norm_epsilon"))


def shortest(number: float) -> float:
    """The shortest decimal of a number that is stored in fp32: what the config said."""
    return float(str(np.float32(number)))


def has_tensor(fields: MetadataFields, name: str) -> bool:
    """Whether the file has that tensor in its first layer."""
    return f"blk.0.{name}" in fields.file.tensors


def every(fields: MetadataFields, count: int, *, full: str = "full_attention") -> list[str]:
    """Kinds of layers where the last one of each `count` sees everything, and the others have a window."""
    return [full if (index + 1) % count == 0 else "sliding_attention" for index in range(num_layers(fields))]


def _vocab_size(fields: MetadataFields) -> int:
    """Rows of the embedding, which may be more than the tokens."""
    embedding = fields.file.tensors.get(EMBEDDING)
    if embedding is not None:
        return embedding.shape[0]
    tokens = fields.file.metadata.get("tokenizer.ggml.tokens")
    return fields.integer("vocab_size", len(tokens) if isinstance(tokens, list) else None)
