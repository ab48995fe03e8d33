"""What a model looks like, read from a Hugging Face `config.json`.

Decides which architectures and which variants of them can be served, and refuses the rest with one sentence
that names the file and the field. A new family is one more entry in `FAMILIES`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class ModelError(Exception):
    """A model directory or setting that cannot be served; the text names the file, tensor or setting."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a decoder. `context_length` is in tokens; sizes are of the whole model, not of one rank."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    rope_theta: float
    norm_eps: float
    tied_embeddings: bool
    attention_bias: bool = False
    mlp_bias: bool = False

    def check_split(self, world: int) -> None:
        """Raises `ModelError` when the model cannot be split over that many ranks."""
        sizes = {
            "num_key_value_heads": self.num_kv_heads,
            "num_attention_heads": self.num_heads,
            "intermediate_size": self.intermediate_size,
        }
        fitting = [str(n) for n in range(1, self.num_kv_heads + 1) if not any(v % n for v in sizes.values())]
        for name, size in sizes.items():
            if world < 1 or size % world:
                raise ModelError(
                    f"tensor_parallel={world} does not divide the model's {name}={size}; "
                    f"possible values: {', '.join(fitting)}"
                )


@dataclass(slots=True)
class Fields:
    """The fields of one config.json, read with checks."""

    path: Path
    raw: dict[str, Any]

    def integer(self, name: str, default: int | None = None) -> int:
        """A positive integer; the default stands for a missing or null field."""
        value = self.raw.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(name, "a positive integer")
        return value

    def number(self, name: str, default: float) -> float:
        """A positive number."""
        value = self.raw.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self.error(name, "a positive number")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self.raw.get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, "true or false")
        return value

    def table(self, name: str) -> dict[str, Any]:
        """An object; empty when missing or null."""
        value = self.raw.get(name)
        if value is not None and not isinstance(value, dict):
            raise self.error(name, "an object or null")
        return value or {}

    def error(self, name: str, expected: str) -> ModelError:
        """The refusal of one field."""
        return ModelError(f"{self.path}: `{name}` must be {expected}, got {self.raw.get(name)!r}")


def _llama(fields: Fields) -> ModelConfig:
    if fields.raw.get("hidden_act", "silu") != "silu":
        raise fields.error("hidden_act", "silu")
    num_heads = fields.integer("num_attention_heads")
    hidden_size = fields.integer("hidden_size")
    config = ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", num_heads),
        head_dim=fields.integer("head_dim", hidden_size // num_heads),
        context_length=fields.integer("max_position_embeddings", 2048),
        rope_theta=_rope_theta(fields),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        tied_embeddings=fields.flag("tie_word_embeddings"),
        attention_bias=fields.flag("attention_bias"),
        mlp_bias=fields.flag("mlp_bias"),
    )
    if config.num_heads % config.num_kv_heads:
        raise fields.error("num_key_value_heads", f"a divisor of num_attention_heads ({num_heads})")
    if config.head_dim % 2:
        raise fields.error("head_dim", f"even, it is {config.head_dim}")
    return config


# transformers 5 writes `rope_parameters`, older versions `rope_theta` and `rope_scaling`
def _rope_theta(fields: Fields) -> float:
    for name in ("rope_parameters", "rope_scaling"):
        table = fields.table(name)
        kind = table.get("rope_type", table.get("type", "default"))
        if kind != "default":
            raise ModelError(f"{fields.path}: `{name}` of type {kind!r} is not supported, only 'default' is")
    inner = Fields(fields.path, fields.table("rope_parameters"))
    return inner.number("rope_theta", fields.number("rope_theta", 10000.0))


FAMILIES: dict[str, Callable[[Fields], ModelConfig]] = {"LlamaForCausalLM": _llama}


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
        raise ModelError(f"{path}: `architectures` must name one of {known}, got {architectures!r}")
    family = FAMILIES.get(architectures[0])
    if family is None:
        raise ModelError(f"{path}: architecture {architectures[0]!r} is not supported; known: {known}")
    return family(Fields(path, raw))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of the model; raises `ModelError` naming the file."""
    try:
        raw = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist; a model is a directory in Hugging Face format") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ModelError(f"{path} must hold a JSON object, it holds a {type(raw).__name__}")
    return raw
