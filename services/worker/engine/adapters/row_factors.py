"""What each output of a DoRA adapter (Liu et al., arXiv 2402.09353) is scaled with: magnitude / norm.

The row is that of the base's weight, as the files hold it, with the adapter's product added. It is whole also
where ranks have parts of it only, so each rank reads the files of the base. This is the definition of PEFT's
`DoraLinearLayer`. What a group rounds in its own copy of the weights does not change the factors.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from services.worker.adapters.adapter import Matrices
from services.worker.adapters.description import AdapterError
from services.worker.adapters.targets import HEAD
from services.worker.engine.checkpoint.names.tensor_view import LocatedTensor
from services.worker.engine.checkpoint.weight_files import Checkpoint, open_checkpoint
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.read_config import read_config

_NUMBERS = 1 << 22  # of a weight that are read together


class BaseRows(NamedTuple):
    """The open files of a base.

    Attributes:
        tensors: Of the model, by their canonical names.
    """

    checkpoint: Checkpoint
    tensors: dict[str, LocatedTensor]

    def factors(self, layer: int, module: str, matrices: Matrices, rows: range) -> Tensor:
        """The factors of some outputs of a module, fp32 [rows].

        Args:
            layer: -1: the head.
            matrices: Of an adapter with a magnitude, for all outputs.

        Raises:
            AdapterError: A row has no norm, or one that no finite factor gives.
            ModelError: The files of the base cannot be read.
        """
        located = self._weight(layer, module)
        assert matrices.magnitude is not None
        down, up = torch.from_numpy(matrices.down), torch.from_numpy(matrices.up)
        norms = torch.empty(len(rows))
        for part in _parts(located, rows):
            weight = torch.empty(len(part), located.view.shape[1])
            self.checkpoint.read_located(weight, located, slice(part.start, part.stop))
            weight.addmm_(up[part.start : part.stop], down)
            begin = part.start - rows.start
            norms[begin : begin + len(part)] = torch.linalg.vector_norm(weight, dim=1)
        factors = torch.from_numpy(matrices.magnitude)[rows.start : rows.stop] / norms
        wrong = torch.nonzero(~(factors.isfinite() & norms.isfinite()))
        if len(wrong):
            row = int(wrong[0])
            where = module if module == HEAD else f"{module} of layer {layer}"
            raise AdapterError(
                f"output {rows.start + row} of {where} has the norm {float(norms[row]):g} with the adapter, "
                "to which no magnitude can be given; train it again, or without this target"
            )
        return factors

    def _weight(self, layer: int, module: str) -> LocatedTensor:
        if module != HEAD:
            return self.tensors[f"model.layers.{layer}.{module}.weight"]
        # a tied head is the embedding
        return self.tensors.get(f"{HEAD}.weight") or self.tensors["model.embed_tokens.weight"]


@contextmanager
def open_base_rows(model: Path) -> Iterator[BaseRows]:
    """Opens the files of a base.

    Raises:
        AdapterError: They cannot be read any more.
    """
    try:
        with open_checkpoint(model) as checkpoint:
            yield BaseRows(checkpoint, checkpoint.table.locate(read_config(model)))
    except ModelError as error:
        raise AdapterError(f"the norms of the base's rows cannot be computed: {error}") from error


def _parts(located: LocatedTensor, rows: range) -> Iterator[range]:
    """Consecutive rows that are read together, whole heads where these are paired."""
    view = located.view
    unit = 1 if view.pairs is None else view.pairs.head
    step = max(1, _NUMBERS // (view.shape[1] * unit)) * unit
    for begin in range(rows.start, rows.stop, step):
        yield range(begin, min(begin + step, rows.stop))
