"""The oracle of the cold zone: a reference decoder that reads early keys and values after compression.

It computes one sequence from its first token, deliberately slow like `reference.py`; it serves no requests.
"""

import torch
from torch import Tensor

from services.worker.engine.checkpoint.weight_files import Checkpoint
from services.worker.engine.cold_zone import ColdZone, dequantize, quantize
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.plain.reference import ReferenceDecoder
from services.worker.rank_protocol.page_policy import PagePolicy
from services.worker.rank_protocol.plan import BLOCK_SIZE


class ColdReference(ReferenceDecoder):
    """A decoder whose queries see the blocks outside their hot zone as fp8."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: ModelConfig,
        zone: ColdZone,
        pages: PagePolicy | None = None,
    ) -> None:
        super().__init__(checkpoint, config, pages)
        self._zone = zone

    def _mix(self, queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor, layer: int) -> Tensor:
        """Attention of one layer, [heads, tokens, head_dim]."""
        if not self._zone.layers[layer]:
            return super()._mix(queries, keys, values, seen, layer)
        block = torch.arange(queries.shape[1]) // BLOCK_SIZE
        # [query, key]: whether the key's block is read compressed
        cold = block[None, :] < block[:, None] - self._zone.hot_blocks
        scale = self.config.head_dim**-0.5
        scores = torch.where(cold, queries @ compressed(keys).transpose(1, 2), queries @ keys.transpose(1, 2))
        shares = (scores * scale).masked_fill(seen == 0, -torch.inf).softmax(-1)
        mixed: Tensor = (shares * cold) @ compressed(values) + (shares * ~cold) @ values
        return mixed


def compressed(side: Tensor) -> Tensor:
    """Keys or values, [heads, tokens, head_dim], after compression of their full blocks."""
    heads, tokens, dim = side.shape
    full = tokens // BLOCK_SIZE * BLOCK_SIZE
    blocks = side[:, :full].reshape(heads, -1, BLOCK_SIZE * dim)
    return torch.cat((dequantize(*quantize(blocks)).view(heads, full, dim), side[:, full:]), dim=1)
