"""Reads back what a GGUF file says of a model, and refuses what it cannot say."""

import math
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from cli.models.convert.gguf_model_keys import frequency_divisors
from cli.models.convert.gguf_rope_keys import with_attention_factor
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.layer import LayerConfig
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.read_config import read_config
from services.worker.engine.config.rope import RopeConfig
from services.worker.engine.config.whole_norms import with_whole_norms
from services.worker.gguf.header_bytes import BadGguf

_PRECISION = 1e-5  # relative: GGUF files have fp32
# a Mistral without a window is a Llama there
_OF_NO_EFFECT = {"architecture"}


def require_same(source: Path, config: ModelConfig, file: Path, architecture: str) -> None:
    """Refuses a model that the engine would compute otherwise from the file.

    Args:
        config: As the engine reads it there.
        file: The new file, or the part of it that precedes the weights.
        architecture: The name that the file gives the architecture.

    Raises:
        BadGguf: The file cannot say all of the config.
    """
    path = source / "config.json"
    try:
        found = read_config(file)
    except ModelError as error:
        reason = str(error).replace(str(file), "the GGUF file")
        raise BadGguf(f"{path} is not converted: {reason}") from error
    if name := _difference(_comparable(with_whole_norms(config)), _comparable(found), ""):
        raise BadGguf(f"{path} is not converted, because GGUF files of {architecture} cannot say its {name}")


def _comparable(config: ModelConfig) -> ModelConfig:
    return replace(config, layers=tuple(_comparable_layer(layer) for layer in config.layers))


def _comparable_layer(layer: LayerConfig) -> LayerConfig:
    rope = layer.attention.rope
    if rope is None:
        return layer
    return replace(layer, attention=replace(layer.attention, rope=_comparable_rope(rope)))


def _comparable_rope(rope: RopeConfig) -> RopeConfig:
    """What a kind does not use is left out; divisors are compared in place of what they are made from."""
    divisors = frequency_divisors(rope)
    if divisors is not None:
        return RopeConfig(
            dim=rope.dim, theta=rope.theta, kind=rope.kind, factors=tuple(float(one) for one in divisors)
        )
    rope = with_attention_factor(rope)
    if rope.kind == "default":
        return replace(rope, original_length=0)
    return replace(rope, factor=1.0) if rope.kind == "longrope" else rope


def _difference(one: Any, other: Any, name: str) -> str:
    """Return the name of the first value that differs; an empty text if none does."""
    if isinstance(one, bool) or type(one) is not type(other):
        return "" if one == other else name
    if is_dataclass(one):
        names = [field.name for field in fields(one) if field.name not in _OF_NO_EFFECT]
        names.sort(key="layers".__ne__)  # other differences follow from those
        found = (_difference(getattr(one, n), getattr(other, n), f"{name}.{n}".lstrip(".")) for n in names)
        return next(filter(None, found), "")
    if isinstance(one, tuple):
        if len(one) != len(other):
            return name
        pairs = enumerate(zip(one, other, strict=True))
        return next(filter(None, (_difference(*pair, f"{name}[{index}]") for index, pair in pairs)), "")
    if isinstance(one, float):
        return "" if math.isclose(one, other, rel_tol=_PRECISION) else name
    return "" if one == other else name
