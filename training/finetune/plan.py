"""The settings of one fine-tuning. Equal plans, data, models and machines give equal adapters."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

BASE_BITS = (4, 16, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetunePlan:
    """What is trained, and how.

    Attributes:
        base: Hugging Face directory with float weights.
        base_name: How the adapter's files name the base.
        data: A file of chats, JSON Lines.
        output: The directory of the adapter.
        base_bits: Of a weight of the base in memory: 32, 16 (bf16), or 4 (codes; QLoRA). Products are
            computed in bf16 below 32, if the processor has instructions for it.
        rank: Of each matrix of the adapter.
        alpha: The adapter's outputs are scaled by alpha / rank.
        dropout: Share of the adapter's inputs that are dropped in training.
        targets: Names of the linear layers that get an adapter; empty: all of the decoder's layers.
        length: Tokens of a pack at most. Short chats share a pack and do not see each other.
        packs: Packs of an optimizer step.
        packing: False: each chat is a pack.
        skip_long: Chats with more tokens are left out; else they are refused.
        epochs: Passes over the data, if no early stop comes before.
        learning_rate: At its peak.
        held_out: Share of the chats that is not trained on.
        patience: Evaluations without a lower held-out loss that end the training; 0: none do.
        evaluations: Per epoch.
        checkpoint_s: Seconds between checkpoints; there is one after each evaluation as well.
        recompute: Activations of layers are computed again in the backward pass, which takes less memory.
        threads: CPU threads of torch.
    """

    base: Path
    base_name: str
    data: Path
    output: Path
    base_bits: int = 16
    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    targets: tuple[str, ...] = ()
    length: int = 1024
    packs: int = 1
    packing: bool = True
    skip_long: bool = False
    epochs: int = 3
    learning_rate: float = 5e-4
    held_out: float = 0.1
    patience: int = 3
    evaluations: int = 1
    checkpoint_s: float = 120.0
    recompute: bool = False
    seed: int = 0
    threads: int = 1

    def decisive(self) -> dict[str, Any]:
        """Return what decides the result, as plain data; a run is resumed only with the same."""
        free = ("base", "data", "output", "base_name", "checkpoint_s")
        return {name: value for name, value in asdict(self).items() if name not in free} | {
            "targets": list(self.targets)
        }
