"""In which precision a model's matrices are held and multiplied, and what `auto` means for its files.

`ryz up` and the ranks both ask here, so it imports no torch.
"""

from collections.abc import Iterable
from typing import Protocol

from services.worker.engine.config.json_fields import ModelError
from services.worker.rank_protocol.run_config import Precision

SERVED: tuple[Precision, ...] = ("fp32", "bf16", "int8", "codes")  # what the kernels have
HALF_KV: tuple[Precision, ...] = ("bf16", "int8", "codes")  # precisions whose KV cache is fp16 by default


class TypedTensor(Protocol):
    """What this module asks of a `StoredTensor`."""

    @property
    def kind(self) -> str:
        """The format's name of its type."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions."""
        ...

    @property
    def coded(self) -> bool:
        """Whether it holds codes with scales."""
        ...


def stored_precision(tensors: Iterable[TypedTensor]) -> Precision:
    """The precision that a model's files have.

    Returns:
        `codes` if a matrix is quantized, `bf16` if a matrix is bf16, else `fp32`; this too if a matrix has
        floats of 8 bits, which are exact neither as codes nor in bf16.
    """
    matrices = [tensor for tensor in tensors if len(tensor.shape) > 1]
    if any(tensor.coded for tensor in matrices):
        return "codes"
    if any(tensor.kind.startswith("F8") for tensor in matrices):
        return "fp32"
    return "bf16" if any(tensor.kind == "BF16" for tensor in matrices) else "fp32"


def automatic_precision(stored: Precision, *, kernels: bool) -> Precision:
    """What `auto` stands for.

    Args:
        kernels: Compiled kernels compute; plain torch operations know fp32 only.
    """
    return stored if kernels and stored in SERVED else "fp32"


def require_served(precision: Precision, stored: Precision, model: str) -> None:
    """Refuses a precision that was chosen by name, where the kernels or the files do not have it.

    Args:
        model: Path of the model, for the message.

    Raises:
        ModelError: It cannot be had.
    """
    if precision == "codes" and stored != "codes":
        raise ModelError(
            f"precision=codes is for quantized files, and {model} holds floats; set precision=int8, or "
            "make codes of them first: `ryz quantize MODEL -o DIR`"
        )
    if precision not in SERVED:
        raise ModelError(
            f"precision={precision} cannot be computed yet; set precision to one of auto, {', '.join(SERVED)}"
        )
