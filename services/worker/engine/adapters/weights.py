"""The matrices that an adapter (LoRA; Hu et al., arXiv 2106.09685) adds to those of its base, on one rank."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, slots=True)
class LowRank:
    """One rank's share of what an adapter adds to one matrix: `up (down x)`.

    Attributes:
        down: fp32 [r, inputs of this rank], contiguous.
        up: fp32 [outputs of this rank, r], contiguous; the adapter's scale is in it.
        factors: fp32 [outputs of this rank], contiguous: each output, without its bias and with what is
            added, is multiplied with its own (DoRA); None: outputs stay as they are.
    """

    down: Tensor
    up: Tensor
    factors: Tensor | None = None

    @property
    def num_bytes(self) -> int:
        """Memory of both matrices and the factors."""
        return sum(one.nbytes for one in (self.down, self.up, self.factors) if one is not None)


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """An adapter's share on one rank.

    Attributes:
        layers: By layer and canonical module (`checkpoint/names/canonical.py`): `self_attn.q_proj`, `k_proj`,
            `v_proj` and `o_proj`, `mlp.gate_proj`, `up_proj` and `down_proj`. A matrix that has none is
            absent.
        head: Of the output head, with the token ids of this rank.
        whole_head: fp32 [ids of this rank, hidden], contiguous, in place of the base's head, or
            None.
    """

    layers: Mapping[tuple[int, str], LowRank] = field(default_factory=dict)
    head: LowRank | None = None
    whole_head: Tensor | None = None

    @property
    def num_bytes(self) -> int:
        """Memory of all of them."""
        parts = [*self.layers.values(), *([self.head] if self.head is not None else [])]
        whole = 0 if self.whole_head is None else self.whole_head.nbytes
        return whole + sum(part.num_bytes for part in parts)
