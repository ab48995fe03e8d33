"""Computes with adapters in torch operators: rows of a batch are grouped by adapter, whatever its rank.

What is added to a row depends on this row and its adapter only: rows are computed in whole tiles, as those of
experts are, and added to the outputs of the base, which are the same with and without adapters.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from services.worker.engine.adapters.weights import AdapterWeights, LowRank
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.plain.placement import Placement
from services.worker.engine.plain.tile_rows import padded_rows
from services.worker.engine.rank.sequences import PlanError
from services.worker.rank_protocol.adapters import NO_ADAPTER

HEAD_LAYER = -1

# the linears of a layer as ranks hold them, by the canonical modules that are fused in each
_LINEARS = {
    "self_attn.q_proj": "qkv",
    "self_attn.k_proj": "qkv",
    "self_attn.v_proj": "qkv",
    "self_attn.o_proj": "output",
    "mlp.gate_proj": "gate_up",
    "mlp.up_proj": "gate_up",
    "mlp.down_proj": "down",
}


@dataclass(frozen=True, slots=True)
class AddedPart:
    """What is added to some outputs of a linear.

    Attributes:
        first: The first of these outputs.
    """

    first: int
    low: LowRank


@dataclass(frozen=True, slots=True)
class PlainAdapter:
    """An adapter where it is computed with.

    Attributes:
        parts: By layer and linear.
        head: [ids of this rank, hidden], in place of the base's; None: that stays.
    """

    parts: Mapping[tuple[int, str], list[AddedPart]]
    num_bytes: int
    head: Tensor | None = None

    @classmethod
    def prepare(
        cls, weights: AdapterWeights, config: ModelConfig, *, rank: int, world: int, placement: Placement
    ) -> "PlainAdapter":
        """Moves a rank's share there, in the type of the base's weights."""
        keys = len(config.kv_heads_of(rank, world)) * config.head_dim
        queries = len(config.heads_of(rank, world)) * config.head_dim
        first = {"self_attn.k_proj": queries, "self_attn.v_proj": queries + keys}
        parts: dict[tuple[int, str], list[AddedPart]] = {}
        num_bytes = 0
        modules = [(layer, module, low) for (layer, module), low in weights.layers.items()]
        if weights.head is not None:
            modules.append((HEAD_LAYER, "head", weights.head))
        for layer, module, low in modules:
            # factors stay fp32: rounded, each would be wrong in the same way for every token
            factors = None if low.factors is None else low.factors.to(placement.device)
            moved = LowRank(placement.move(low.down), placement.move(low.up), factors)
            num_bytes += moved.num_bytes
            # gate rows come before up rows; there are as many of each
            gated = module == "mlp.up_proj" and getattr(config.layers[layer].mlp, "gated", False)
            begin = len(low.up) if gated else first.get(module, 0)
            parts.setdefault((layer, _LINEARS.get(module, module)), []).append(AddedPart(begin, moved))
        head = placement.move_optional(weights.whole_head)
        return cls(parts, num_bytes + (0 if head is None else head.nbytes), head)


class RowAdapters:
    """The adapters of the rows of a batch.

    Args:
        slots: Of each row; `NO_ADAPTER` for rows of the base.
        adapters: By slot.

    Raises:
        PlanError: A slot is empty.
    """

    def __init__(
        self, slots: NDArray[np.int64], adapters: Mapping[int, PlainAdapter], device: torch.device
    ) -> None:
        self._groups: list[tuple[PlainAdapter, Tensor]] = []
        for slot in np.unique(slots).tolist():
            if slot == NO_ADAPTER:
                continue
            if slot not in adapters:
                raise PlanError(f"a sequence has adapter slot {slot}, which is empty")
            rows = torch.from_numpy(np.flatnonzero(slots == slot)).to(device)
            self._groups.append((adapters[slot], rows))

    def of_layer(self, layer: int) -> "LayerAdapters":
        """What they add to the linears of a layer."""
        return LayerAdapters(self, layer)

    def add(
        self, layer: int, linear: str, inputs: Tensor, outputs: Tensor, bias: Tensor | None = None
    ) -> None:
        """Adds their part to the outputs [rows, outputs] of a linear for inputs [rows, inputs].

        Args:
            bias: [outputs] that `outputs` have already; factors do not scale it.
        """
        for adapter, rows in self._groups:
            if layer == HEAD_LAYER and adapter.head is not None:
                whole = F.linear(padded_rows(inputs[rows]), adapter.head)[: len(rows)]
                outputs.index_copy_(0, rows, whole.to(outputs.dtype))
            parts = adapter.parts.get((layer, linear))
            if not parts:
                continue
            padded = padded_rows(inputs[rows])
            for part in parts:
                added = F.linear(F.linear(padded, part.low.down), part.low.up)[: len(rows)]
                which = slice(part.first, part.first + added.shape[1])
                own = outputs[:, which]
                if part.low.factors is None:
                    own.index_add_(0, rows, added.to(outputs.dtype))
                    continue
                shift = 0.0 if bias is None else bias[which].float()
                scaled = (own[rows].float() - shift + added.float()) * part.low.factors + shift
                own.index_copy_(0, rows, scaled.to(outputs.dtype))


@dataclass(frozen=True, slots=True)
class LayerAdapters:
    """The adapters of the rows of a batch, in one layer."""

    rows: RowAdapters
    layer: int

    def add(self, linear: str, inputs: Tensor, outputs: Tensor, bias: Tensor | None = None) -> None:
        """As `RowAdapters.add`."""
        self.rows.add(self.layer, linear, inputs, outputs, bias)


def row_adapters(
    slots: NDArray[np.int64] | None, adapters: Mapping[int, PlainAdapter], device: torch.device
) -> RowAdapters | None:
    """None if all rows are the base's."""
    if slots is None or (slots == NO_ADAPTER).all():
        return None
    return RowAdapters(slots, adapters, device)
