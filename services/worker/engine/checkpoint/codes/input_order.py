"""The order in which inputs belong to groups (`g_idx` of GPTQ with `desc_act`); it imports no torch."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from services.worker.engine.checkpoint.codes.file_bytes import read_bytes
from services.worker.engine.checkpoint.stored_tensor import StoredTensor
from services.worker.engine.config.json_fields import ModelError

_PART = 32  # inputs that share a scale where a group is not whole; activations have scales for as many


@dataclass(frozen=True, slots=True)
class SortedInputs:
    """Inputs of a slice, those of a group beside each other.

    Attributes:
        columns: The input whose codes a column holds.
        order: The same, or -1 where a column only fills up a group.
        groups: The group of each `size` columns.
        size: Columns that share a scale.
    """

    columns: NDArray[np.int32]
    order: NDArray[np.int32]
    groups: NDArray[np.int32]
    size: int


def sorted_inputs(groups: NDArray[np.int32], size: int) -> SortedInputs:
    """Sort the inputs of a slice by their groups.

    Args:
        groups: The group of each input.
        size: Inputs of a group of the whole matrix. A slice may have any part of a group, which is then
            filled up to a multiple of 32 columns.
    """
    positions = np.argsort(groups, kind="stable").astype(np.int32)
    present, counts = np.unique(groups, return_counts=True)
    part = size if size % _PART == 0 and (counts == size).all() else _PART
    columns, order = list[NDArray[np.int32]](), list[NDArray[np.int32]]()
    for own in np.split(positions, np.cumsum(counts)[:-1]):
        missing = -len(own) % part
        columns += [own, np.repeat(own[:1], missing)]
        order += [own, np.full(missing, -1, dtype=np.int32)]
    return SortedInputs(
        np.concatenate(columns), np.concatenate(order), np.repeat(present, -(-counts // part)), part
    )


def read_order(order: StoredTensor, inputs: range) -> NDArray[np.int32]:
    """The group of each of some consecutive inputs."""
    return read_bytes(order, 4 * inputs.start, 4 * len(inputs)).view(np.int32)


def with_order(matrix: StoredTensor, order: StoredTensor | None) -> StoredTensor:
    """A matrix of packed integers with the groups of its inputs.

    Args:
        matrix: Whose groups follow each other.
        order: int32 [inputs], the group of each; None, or all -1: they follow each other.

    Raises:
        ModelError: It is no list of the matrix's groups.
    """
    assert matrix.packed is not None
    inputs, groups = matrix.shape[1], matrix.packed.groups
    if order is None:
        return matrix
    if order.kind != "I32" or order.shape != (inputs,):
        raise ModelError(f"{order.path}: a g_idx is {order.kind} {list(order.shape)}, not {inputs} integers")
    found = read_order(order, range(inputs))
    if np.array_equal(found, np.arange(inputs) // (inputs // groups)) or (found == -1).all():
        return matrix
    if found.min() < 0 or found.max() >= groups:
        raise ModelError(
            f"{order.path}: a g_idx names groups from {found.min()} to {found.max()}, there are {groups}"
        )
    parts = replace(matrix.packed, order=order)
    return replace(matrix, kind=parts.kind, packed=parts)
