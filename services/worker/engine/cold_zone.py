"""The cold zone of the KV cache: which layers and blocks are fp8, its name in the KV format, and the codes.

A query reads its own block and the `hot_blocks` before it in full precision, all earlier blocks of its
sequence as fp8. Blocks that a sequence did not compute itself, but found in the cache, are always read as
fp8. The codes of a block depend only on its keys and values.
"""

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from services.worker.engine.config.json_fields import ModelError
from services.worker.rank_protocol.plan import BLOCK_SIZE
from services.worker.rank_protocol.run_config import EngineRunConfig

LARGEST = 448.0  # of e4m3 (Micikevicius et al., FP8 formats for deep learning, 2022)
TINY = 1e-30  # a block with nothing larger becomes zeros
PASS_TOKENS = 512  # of one pass of the kernels
SCALE_BYTES = 4  # of the keys, and of the values, of a block and KV head


@dataclass(frozen=True, slots=True)
class ColdZone:
    """Which blocks are compressed.

    Attributes:
        hot_blocks: How many blocks before its own a query reads in full precision.
        layers: For each layer of the model whether it has a cold zone; at least one has.
    """

    hot_blocks: int
    layers: tuple[bool, ...]

    @property
    def format(self) -> str:
        """Its part of the KV format's name, such as `fp8:16:all` or `fp8:16:0-3,8`."""
        return f"fp8:{self.hot_blocks * BLOCK_SIZE}:{_ranges(self.layers)}"

    @property
    def num_layers(self) -> int:
        """How many layers have a cold zone."""
        return sum(self.layers)

    def window_slots(self, max_running: int) -> int:
        """Blocks in full precision that so many running sequences use at most, prefills included."""
        return max_running * (self.hot_blocks + 1) + 2 * PASS_TOKENS // BLOCK_SIZE


def cold_zone(run: EngineRunConfig, num_layers: int) -> ColdZone | None:
    """The cold zone of a config; None for none.

    Raises:
        ModelError: `kv_cold_layers` names layers that the model does not have, or is no list of them.
    """
    if run.kv_cold == "none":
        return None
    return ColdZone(-(-run.kv_hot_tokens // BLOCK_SIZE), parse_layers(run.kv_cold_layers, num_layers))


def parse_layers(text: str, num_layers: int) -> tuple[bool, ...]:
    """Parses `all`, or numbers and ranges such as `0-3,8`, into a flag for each layer.

    Raises:
        ModelError: The text is no list of the model's layers.
    """
    if text == "all":
        return (True,) * num_layers
    chosen: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if not first <= last < num_layers:
            raise ModelError(
                f"kv_cold_layers={text}: {part.strip()!r} is no layer, nor a range of layers, of 0 to "
                f"{num_layers - 1}; write `all`, or something like `0-{num_layers - 1}`"
            )
        chosen.update(range(first, last + 1))
    return tuple(index in chosen for index in range(num_layers))


def quantize(side: Tensor) -> tuple[Tensor, Tensor]:
    """Keys or values as fp8 with a scale, as the kernels compute them; their oracle.

    Args:
        side: Of one or more blocks and KV heads, [..., numbers of one scale], fp32.

    Returns:
        Codes, [..., numbers of one scale] of `float8_e4m3fn`, and scales, [..., 1].
    """
    peak = side.abs().amax(-1, keepdim=True)
    something = peak > TINY
    inverse = torch.where(something, LARGEST / peak, 0.0)
    damage = (side * 0).sum(-1, keepdim=True)  # NaN if a number is NaN or infinite
    scale = torch.where(something, peak / LARGEST, 0.0) + damage
    return (side * inverse).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn), scale


def dequantize(codes: Tensor, scale: Tensor) -> Tensor:
    """The numbers of `quantize`, rounded, in fp32."""
    return codes.to(torch.float32) * scale


def _ranges(layers: tuple[bool, ...]) -> str:
    if all(layers):
        return "all"
    parts: list[str] = []
    index = 0
    while index < len(layers):
        if not layers[index]:
            index += 1
            continue
        first = index
        while index < len(layers) and layers[index]:
            index += 1
        parts.append(str(first) if index == first + 1 else f"{first}-{index - 1}")
    return ",".join(parts)
