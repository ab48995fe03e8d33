"""How much memory a training needs at its peak, from the sizes of model and plan. Pure.

The parts of activations were fitted to measured peaks of Llama-like models (docs/finetuning.md); other
architectures differ by their norms and gates, which the margin covers.
"""

from dataclasses import dataclass

from training.finetune.errors import FinetuneError
from training.finetune.plan import FinetunePlan

# Python with torch, transformers and peft takes 386 MiB; after hundreds of steps with packs of different
# lengths the C library keeps as much again of freed memory
PROCESS_BYTES = 900 * 2**20
CODE_BITS = 4.25  # of a weight as codes, with its share of a scale
_MARGIN = 1.2  # of activations
_LOGIT_COPIES = 4  # logits in fp32, their exponentials and gradients


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a model.

    Attributes:
        linear: Weights of the decoder's linear layers, which may be codes.
        other: All others: embedding, head, norms.
        hidden: Width of the residual stream.
        inner: Width of an MLP, of those that compute for one token together.
        attention: Outputs of the query, key and value projections together.
        adapted: Sum of inputs and outputs of all layers that get an adapter.
        adapted_inputs: Sum of their inputs.
        all_logits: The model computes logits of all tokens, not of those alone that are learned.
    """

    linear: int
    other: int
    layers: int
    hidden: int
    inner: int
    attention: int
    vocab: int
    adapted: int
    adapted_inputs: int
    all_logits: bool = False


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes of each part.

    Attributes:
        base: The base's weights; while they are read they are in 16 or 32 bits.
        adapter: Its weights, gradients, and the optimizer's two moments.
        activations: What the forward pass keeps for the backward pass.
        logits: Of the tokens of a pack that are learned, with their gradients.
    """

    process: int
    base: int
    adapter: int
    activations: int
    logits: int

    @property
    def total(self) -> int:
        """Return the sum."""
        return self.process + self.base + self.adapter + self.activations + self.logits

    def parts(self) -> dict[str, int]:
        """Return the parts by their names."""
        return {
            "process": self.process, "base": self.base, "adapter": self.adapter,
            "activations": self.activations, "logits": self.logits,
        }  # fmt: skip

    def text(self) -> str:
        """Return total and parts."""
        parts = ", ".join(f"{name} {in_mib(count)}" for name, count in self.parts().items())
        return f"{in_mib(self.total)} ({parts})"


def estimate(
    shape: ModelShape, plan: FinetunePlan, *, bf16: bool, length: int, learned: int
) -> MemoryEstimate:
    """Estimate the peak.

    Args:
        bf16: Products are computed in bf16.
        length: Tokens of the longest pack.
        learned: Learned tokens of a pack at most.
    """
    item, bits = (2 if bf16 else 4), (4 if plan.base_bits == 32 else 2)
    loaded = (shape.linear + shape.other) * bits
    held = shape.linear * CODE_BITS / 8 + shape.other * bits if plan.base_bits == 4 else loaded
    weights = plan.rank * shape.adapted
    of_layer = _activations(shape, plan, item)
    layers = of_layer * shape.layers
    if plan.recompute:
        layers = of_layer + 4 * shape.hidden * shape.layers
    copies = 5 if plan.held_out else 4  # the best adapter so far
    return MemoryEstimate(
        process=PROCESS_BYTES,
        base=int(max(loaded, held)),
        adapter=4 * copies * weights,
        activations=int(_MARGIN * length * layers),
        logits=_LOGIT_COPIES * 4 * (length if shape.all_logits else learned) * shape.vocab,
    )


def require_room(found: MemoryEstimate, free: int, plan: FinetunePlan) -> None:
    """Refuse a training that would not fit.

    Raises:
        FinetuneError: It needs more than is free; the text has parts and remedies.
    """
    if found.total <= free:
        return
    remedies = []
    if plan.base_bits > 4:
        remedies.append(f"--base-bits {4 if plan.base_bits == 16 else 16}")
    if not plan.recompute:
        remedies.append("--recompute")
    remedies.append(f"a --length below {plan.length}")
    raise FinetuneError(
        f"The training needs about {found.text()}, and {in_mib(free)} are free: take {', '.join(remedies)}, "
        "or end other programs"
    )


def in_mib(count: int) -> str:
    """Return a number of bytes for a person."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def _activations(shape: ModelShape, plan: FinetunePlan, item: int) -> float:
    """Return the bytes of one token in one layer."""
    stream = 6 * shape.hidden * 4 + 6 * shape.hidden * item
    attention = 4 * shape.attention * item
    inner = 5 * shape.inner * item
    dropped = (shape.adapted_inputs / shape.layers) * item * 2 if plan.dropout else 0
    return stream + attention + inner + dropped
