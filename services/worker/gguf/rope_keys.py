"""Reads the rotary embedding of a GGUF file, and says it as a Hugging Face config would.

llama.cpp's keys give linear and YaRN scaling. That of Llama 3.1 is a tensor with one divisor for each
frequency, `rope_freqs.weight`; the parameters of its formula are found from the divisors.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.worker.gguf.gguf_file import GgufTensor
from services.worker.gguf.header_bytes import BadGguf, damaged
from services.worker.gguf.metadata_fields import MetadataFields

FREQUENCY_DIVISORS = "rope_freqs.weight"
FACTORS = ("rope_factors_short.weight", "rope_factors_long.weight")
_LARGEST_HEAD = 4096
_TOLERANCE = 1e-5  # relative, of a divisor: they are stored in fp32
# as every Llama 3.1 to 3.3 was trained; only the ratio of the three counts, so a fit may keep the first
_LLAMA3_LENGTH, _LLAMA3_LOW, _LLAMA3_HIGH = 8192, 1.0, 4.0

_BETAS = {"fast": 32.0, "slow": 1.0}
Doubles = NDArray[np.float64]


def rope_config(
    fields: MetadataFields, head_dim: int, context_length: int, *, lists: bool = False
) -> dict[str, Any]:
    """The fields `rope_theta`, `rope_scaling` and `partial_rotary_factor` of a config.

    Lists of factors are for the caller to read, if `lists` says so; else they are refused.

    Raises:
        BadGguf: A kind that is not known, or wrong parameters.
    """
    theta = fields.number("rope.freq_base", 10000.0)
    config: dict[str, Any] = {"rope_theta": theta}
    rotated = fields.integer("rope.dimension_count", head_dim)
    if rotated != head_dim:
        config["partial_rotary_factor"] = rotated / head_dim
    if lists and FACTORS[0] in fields.file.tensors:
        for key in ("type", "factor", "original_context_length", "attn_factor"):
            fields.has(f"rope.scaling.{key}")
        return config
    for name in FACTORS:
        if name in fields.file.tensors:
            raise BadGguf(f"{fields.file.path}: {name} is not supported in models of this architecture")
    scaling = _scaling(fields, context_length)
    divisors = fields.file.tensors.get(FREQUENCY_DIVISORS)
    if divisors is not None:
        if scaling:
            raise BadGguf(
                f"{divisors.path}: {FREQUENCY_DIVISORS} beside another rope scaling is not supported"
            )
        scaling = _llama3(divisors, theta, rotated)
    if scaling:
        config["rope_scaling"] = scaling
    return config


def _scaling(fields: MetadataFields, context_length: int) -> dict[str, Any]:
    kind = fields.text("rope.scaling.type", "linear")  # what llama.cpp assumes
    legacy = fields.number("rope.scale_linear", 1.0)
    factor = fields.number("rope.scaling.factor", legacy)
    fields.has("rope.scaling.finetuned")  # says nothing about the computation
    fields.require("rope.scaling.yarn_ext_factor", (1, -1))
    original = fields.integer("rope.scaling.original_context_length", context_length)
    fast, slow = (fields.number(f"rope.scaling.yarn_beta_{end}", default) for end, default in _BETAS.items())
    # llama.cpp multiplies it with what YaRN's formula gives
    attention = fields.number("rope.scaling.attn_factor", 1.0) * fields.number(
        "rope.scaling.yarn_attn_factor", 1.0
    )
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return {}
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind != "yarn":
        raise fields.error("rope.scaling.type", "none, linear or yarn, because no other kind is supported")
    scaling = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
        "beta_fast": fast,
        "beta_slow": slow,
    }
    if attention != 1.0:
        scaling["attention_factor"] = attention * (0.1 * math.log(max(1.0, factor)) + 1.0)
    return scaling


def _llama3(tensor: GgufTensor, theta: float, rotated: int) -> dict[str, Any]:
    """The parameters of Llama 3.1's formula that give these divisors."""
    divisors = _read_divisors(tensor, rotated)
    factor = round(float(divisors.max()), 4)
    frequencies = 1.0 / theta ** (np.arange(0, rotated, 2) / rotated)
    if factor == 1.0:
        return {}
    bounds = [(_LLAMA3_LOW, _LLAMA3_HIGH)]
    fitted = _fit(frequencies, divisors, factor)
    if fitted is not None:
        bounds += [(round(fitted[0], 3), round(fitted[1], 3)), fitted]
    for low, high in bounds:
        if 0 < low < high and np.allclose(_divisors(frequencies, factor, low, high), divisors, _TOLERANCE, 0):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": _LLAMA3_LENGTH,
            }
    raise BadGguf(
        f"{tensor.path}: {FREQUENCY_DIVISORS} holds no scaling by the formula of Llama 3.1, and no other is "
        "supported; use another model"
    )


def _divisors(frequencies: Doubles, factor: float, low: float, high: float) -> Doubles:
    rotations = _LLAMA3_LENGTH * frequencies / (2 * math.pi)
    keep = np.clip((rotations - low) / (high - low), 0.0, 1.0)
    divisors: Doubles = 1.0 / ((1.0 - keep) / factor + keep)
    return divisors


def _fit(frequencies: Doubles, divisors: Doubles, factor: float) -> tuple[float, float] | None:
    """The bounds of the blend, in rotations within the original context; None if too few lie between them."""
    keep = (1.0 / divisors - 1.0 / factor) / (1.0 - 1.0 / factor)  # a line over the frequency
    blended = (keep > _TOLERANCE) & (keep < 1.0 - _TOLERANCE)
    if blended.sum() < 2:
        return None
    slope, offset = np.polyfit(frequencies[blended], keep[blended], 1)
    if slope <= 0:
        return None
    width = _LLAMA3_LENGTH / (2 * math.pi) / slope
    return float(-offset * width), float((1.0 - offset) * width)


def read_factors(tensor: GgufTensor, rotated: int) -> list[float]:
    """The factors of a longer context, one for each frequency.

    Raises:
        BadGguf: The tensor has another shape or type, or absurd numbers.
    """
    return [float(str(np.float32(factor))) for factor in _read_divisors(tensor, rotated)]


def _read_divisors(tensor: GgufTensor, rotated: int) -> Doubles:
    name = tensor.name
    if tensor.type.name != "F32" or tensor.shape != (rotated // 2,) or rotated > _LARGEST_HEAD:
        raise damaged(tensor.path, f"{name} is {tensor.type.name} {list(tensor.shape)}")
    try:
        with tensor.path.open("rb") as file:
            file.seek(tensor.begin)
            data = file.read(tensor.end - tensor.begin)
    except OSError as error:
        raise BadGguf(f"{tensor.path} cannot be read: {error.strerror}; check the model's path") from error
    if len(data) != tensor.end - tensor.begin:
        raise damaged(tensor.path, f"it ends within {name}")
    divisors = np.frombuffer(data, "<f4").astype(np.float64)
    if not (np.isfinite(divisors) & (divisors >= 1.0 - _TOLERANCE) & (divisors < 1e6)).all():
        raise damaged(tensor.path, f"{name} has divisors below 1 or beyond all bounds")
    return divisors
