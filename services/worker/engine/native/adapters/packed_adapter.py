"""Packs an adapter's matrices as the kernels read them."""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from services.worker.adapters.description import AdapterError
from services.worker.engine.adapters.weights import AdapterWeights, LowRank
from services.worker.engine.native.adapters.sites import HEAD, AdapterSite
from services.worker.engine.native.library import KernelLibrary
from services.worker.engine.native.packed_weights import buffer, padded
from services.worker.engine.native.structs.adapters import LowRankPart, PackedLowRank

_LINE = 64  # bytes of a cache line

Matrices = Mapping[tuple[int, str], LowRank]  # by layer and module


@dataclass(frozen=True, slots=True)
class PackedAdapter:
    """An adapter's share on one rank.

    Attributes:
        sites: What it adds to each linear.
        rank: Most inner features of a linear, of all its matrices together.
        memory: What `sites` points to.
    """

    sites: "ctypes.Array[PackedLowRank]"
    rank: int
    memory: Tensor

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        return self.memory.nbytes + ctypes.sizeof(self.sites)


def pack_adapter(
    kernels: KernelLibrary, sites: Sequence[AdapterSite], weights: AdapterWeights
) -> PackedAdapter:
    """Packs an adapter for a program.

    Where the base computes with floats the matrices stay fp32, or become bf16 if that loses nothing; beside
    pairs, bytes and codes they are bf16.

    Args:
        sites: The program's, by their numbers.

    Raises:
        AdapterError: A matrix is none of those of the sites, or has another shape.
    """
    matrices = dict(weights.layers)
    if weights.head is not None:
        matrices[HEAD] = weights.head
    if weights.whole_head is not None:
        # without `down` the kernels take the inputs themselves, and the sums in place of the base's
        matrices[HEAD] = LowRank(torch.empty(0, weights.whole_head.shape[1]), weights.whole_head)
    known = {(site.layer, part.module) for site in sites for part in site.parts}
    for layer, module in matrices:
        if (layer, module) not in known:
            raise AdapterError(f"the kernels cannot add an adapter to {module} of layer {layer}")
    parts = [_parts_of(site, matrices) for site in sites]
    halves, begins, size = list[bool](), list[int](), 0
    for site, own in zip(sites, parts, strict=True):
        halves.append(not site.exact or bool(kernels.fits_halves(own, site.shape)))
        begins.append(size)
        if any(part.rank for part in own):
            size += padded(kernels.low_rank_bytes(own, site.shape, halves[-1]), _LINE)
    memory, packed = buffer(size, dtype=torch.uint8), (PackedLowRank * len(sites))()
    for site, own, half, begin in zip(sites, parts, halves, begins, strict=True):
        if any(part.rank for part in own):
            target = memory.data_ptr() + begin
            kernels.pack_low_rank(own, site.shape, half, target, packed[site.number])
    return PackedAdapter(packed, max((one.rank for one in packed), default=0), memory)


def _parts_of(site: AdapterSite, matrices: Matrices) -> "ctypes.Array[LowRankPart]":
    parts = (LowRankPart * len(site.parts))()
    for target, part in zip(parts, site.parts, strict=True):
        target.outputs = part.outputs
        added = matrices.get((site.layer, part.module))
        if added is None:
            continue
        rank, inputs = added.down.shape
        whole = rank == 0
        if whole:
            rank = inputs
        outputs = added.up.shape[0]
        # the head has outputs without a token
        fits = outputs == part.outputs or ((site.layer, part.module) == HEAD and outputs < part.outputs)
        if inputs != site.shape.inputs or not fits or added.up.shape[1] != rank:
            raise AdapterError(
                f"an adapter has {list(added.down.shape)} and {list(added.up.shape)} for {part.module} of "
                f"layer {site.layer}; [r, {site.shape.inputs}] and [{part.outputs}, r] were expected"
            )
        if added.factors is not None and added.factors.shape != (outputs,):
            raise AdapterError(
                f"an adapter has factors {list(added.factors.shape)} for {part.module} of layer "
                f"{site.layer}; [{outputs}] were expected"
            )
        for tensor in (added.down, added.up, *([] if added.factors is None else [added.factors])):
            assert tensor.dtype == torch.float32
            assert tensor.is_contiguous()
        target.rank, target.outputs = rank, outputs
        target.down = 0 if whole else added.down.data_ptr()
        target.up = added.up.data_ptr()
        target.factors = 0 if added.factors is None else added.factors.data_ptr()
    return parts
