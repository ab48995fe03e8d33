"""The two matrices that an adapter file has for one module, before they are read."""

import math
from dataclasses import dataclass
from pathlib import Path

from services.worker.adapters.description import AdapterError
from services.worker.engine.checkpoint.stored_tensor import StoredTensor

MOST_RANK = 512
MOST_SCALE = 1024.0  # far beyond what training uses: alpha is mostly one to four times the rank


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """A tensor of an adapter file."""

    name: str
    stored: StoredTensor


@dataclass(frozen=True, slots=True)
class StoredPair:
    """What is added to one module: `scale * up @ down`.

    Attributes:
        module: As the file names it, without what follows the base's name.
        down: [r, inputs].
        up: [outputs, r].
        magnitude: [outputs], the norm that each row of the changed weight gets (DoRA); None: its own.
    """

    module: str
    down: NamedTensor
    up: NamedTensor
    scale: float
    magnitude: NamedTensor | None = None

    @property
    def rank(self) -> int:
        """Rows of `down`."""
        return self.down.stored.shape[0]


def require_partners(
    path: Path, downs: dict[str, NamedTensor], ups: dict[str, NamedTensor], partner: dict[bool, str]
) -> None:
    """Refuses matrices without the other one of their pair, and files without any.

    Args:
        downs: By module; `ups` as well.
        partner: What the missing one's name ends with, by whether it is a `down`.
    """
    if not downs and not ups:
        raise AdapterError(f"{path} holds no matrices of an adapter; export the adapter again")
    for own, others, is_down in ((downs, ups, False), (ups, downs, True)):
        for module, tensor in own.items():
            if module not in others:
                raise AdapterError(
                    f"{path}: tensor {tensor.name} lacks its partner {module}{partner[is_down]}; export the "
                    "adapter again"
                )


def require_rank(path: Path, module: str, down: NamedTensor, up: NamedTensor) -> int:
    """The rank of a pair.

    Raises:
        AdapterError: It has none, or one that is not served.
    """
    for tensor in (down, up):
        if len(tensor.stored.shape) != 2:
            raise AdapterError(
                f"{path}: tensor {tensor.name} has shape {list(tensor.stored.shape)}, and those of matrices "
                "have two dimensions; train without this target"
            )
    rank = down.stored.shape[0]
    if up.stored.shape[1] != rank:
        raise AdapterError(
            f"{path}: tensor {down.name} has rank {rank} and its partner {up.name} has rank "
            f"{up.stored.shape[1]}; export the adapter again"
        )
    if not 1 <= rank <= MOST_RANK:
        raise AdapterError(
            f"{path}: {module} has rank {rank}, served are 1 to {MOST_RANK}; train with a rank in this range"
        )
    return rank


def require_scale(path: Path, field: str, scale: float) -> float:
    """Refuses a scale that nothing trains with.

    Args:
        field: What it follows from, for the refusal.
    """
    if not math.isfinite(scale) or abs(scale) > MOST_SCALE:
        raise AdapterError(
            f"{path}: {field} gives the scale {scale:g}, at most {MOST_SCALE:g} is served; check its alpha"
        )
    return scale
