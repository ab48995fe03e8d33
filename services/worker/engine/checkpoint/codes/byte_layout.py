"""Finds weights of a byte or less with scales beside them in safetensors files; it imports no torch.

`NAME.weight` is I8 with compressed-tensors' `int-quantized`; F8_E4M3 or F8_E5M2 with its `float-quantized`
and with transformers' `fp8`; U8 with `bitnet`: there four codes are in a byte, the lowest bits of all bytes
have the first quarter of the outputs. `NAME.weight_scale`, or `NAME.weight_scale_inv` of `fp8`, has the
scales: of the whole matrix, of each output, of groups of inputs, or of blocks of both.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from services.worker.engine.checkpoint.stored_tensor import ITEM_BYTES, PackedParts, StoredTensor
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.packed_weights import ByteForms

_WEIGHT = ".weight"
_SCALES = (".weight_scale", ".weight_scale_inv")
_ZEROS = ".weight_zero_point"
# of activations, which are quantized here in blocks as they come
_UNUSED = (".input_scale", ".input_zero_point", ".input_scale_ub", ".activation_scale")
_BYTES, _TERNARY, _FLOATS = "I8", "U8", ("F8_E4M3", "F8_E5M2")
_POWERS = ("F8_E8M0", "U8")  # scales that are powers of two


def has_bytes(tensors: Mapping[str, StoredTensor]) -> bool:
    """Whether there are weights with scales beside them."""
    return any(name.endswith(_SCALES) for name in tensors)


def joined_bytes(tensors: Mapping[str, StoredTensor], forms: ByteForms) -> dict[str, StoredTensor]:
    """The tensors with each such weight and its scales as one, under the name of the weight.

    Raises:
        ModelError: Scales are missing or misshapen.
    """
    found = dict(tensors)
    for name, weight in tensors.items():
        if not name.endswith(_WEIGHT) or weight.kind not in {_BYTES, _TERNARY, *_FLOATS}:
            continue
        module = name.removesuffix(_WEIGHT)
        scales = next((tensors[module + each] for each in _SCALES if module + each in tensors), None)
        if scales is None or len(weight.shape) != 2:
            raise ModelError(f"{weight.path}: {name} is {weight.kind}, and no matrix with a weight_scale")
        joined = _matrix(weight, scales, tensors.get(module + _ZEROS), forms)
        if joined is None:
            raise ModelError(
                f"{weight.path}: {name} is {weight.kind} {list(weight.shape)}, and its scales "
                f"{scales.kind} {list(scales.shape)} or zero points do not fit"
            )
        found[name] = joined
        for suffix in (*_SCALES, _ZEROS, *_UNUSED):
            found.pop(module + suffix, None)
    return found


def _matrix(
    weight: StoredTensor, scales: StoredTensor, zeros: StoredTensor | None, forms: ByteForms
) -> StoredTensor | None:
    """A weight with its scales; None if they do not fit."""
    outputs, inputs = weight.shape
    if weight.kind in _FLOATS:
        return None if zeros is not None else _floats(weight, scales, forms)
    if scales.kind not in ITEM_BYTES or weight.end - weight.begin != outputs * inputs:
        return None
    scales = replace(scales, shape=_two(scales.shape))
    rows, groups = scales.shape
    if weight.kind == _TERNARY:
        parts = PackedParts(
            2, inputs // 16, scales, None, zero=1, form="divided ternary" if forms.divided else "ternary"
        )
        fits = zeros is None and (rows, groups) == (1, 1)
        return replace(weight, kind=parts.kind, shape=(4 * outputs, inputs), packed=parts) if fits else None
    if (rows, groups) != (1, 1) and (rows != outputs or not groups or inputs % groups):
        return None
    if zeros is not None:
        zeros = replace(zeros, shape=_two(zeros.shape))
        if zeros.kind != _BYTES or zeros.shape != scales.shape or zeros.end - zeros.begin != rows * groups:
            return None
    parts = PackedParts(8, inputs // 4, scales, zeros, zero=128, form="bytes")
    return replace(weight, kind=parts.kind, packed=parts)


def _floats(weight: StoredTensor, scales: StoredTensor, forms: ByteForms) -> StoredTensor | None:
    shape = _two(scales.shape)
    blocks = tuple(-(-size // block) for size, block in zip(weight.shape, forms.block, strict=True))
    outputs, inputs = weight.shape
    if shape == blocks:
        block = forms.block
    elif shape[0] in {1, outputs} and shape[1] and inputs % shape[1] == 0:
        block = (outputs // shape[0], inputs // shape[1])
    else:
        return None
    sizes = ITEM_BYTES | dict.fromkeys(_POWERS, 1)
    whole = weight.end - weight.begin == outputs * inputs
    if not whole or scales.end - scales.begin != prod(shape) * sizes.get(scales.kind, 0):
        return None
    return replace(weight, scales=replace(scales, shape=shape), block=block)


def _two(shape: tuple[int, ...]) -> tuple[int, int]:
    """The shape of scales with both dimensions."""
    rows, columns = (*shape, 1, 1)[:2]
    return (rows, columns) if len(shape) <= 2 else (0, 0)
