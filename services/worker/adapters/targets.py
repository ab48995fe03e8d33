"""Finds which matrices of the base an adapter's modules are, with the tables that load the base's weights.

A module of a family may be several canonical matrices in one. The rows of its `up` then are cut, and put in
order, as those of the base's weight are; its `down` has the weight's columns.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from services.worker.adapters.description import AdapterError
from services.worker.adapters.stored_pair import StoredPair
from services.worker.engine.checkpoint.names.canonical import CanonicalTensor, canonical_tensors
from services.worker.engine.checkpoint.names.file_names import FileNames
from services.worker.engine.checkpoint.names.tensor_view import TensorView
from services.worker.engine.config.model import ModelConfig
from services.worker.model_files.json_files import shown

HEAD = "lm_head"
ROW_PARALLEL = ("self_attn.o_proj", "mlp.down_proj")
SERVED = (
    *(f"self_attn.{part}_proj" for part in "qkvo"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    HEAD,
)
_REFUSED = (
    ("mlp.experts", "adapters of experts are not served; train without them as targets"),
    ("mlp.shared", "adapters of experts are not served; train without them as targets"),
    ("mlp.router", "adapters of experts are not served; train without the router as a target"),
    ("model.embed_tokens", "adapters of embeddings are not served; train without them as targets"),
    ("model.positions", "adapters of embeddings are not served; train without them as targets"),
)


@dataclass(frozen=True, slots=True)
class Target:
    """A canonical matrix, and where its rows are in the module of the file.

    Attributes:
        layer: -1: the head.
        rows: Of `up`, in the canonical order; None: all as they are.
    """

    layer: int
    module: str
    rows: NDArray[np.int64] | None


Part = tuple[CanonicalTensor, TensorView]
Parts = Mapping[str, Sequence[Part]]  # the canonical tensors in each module of files


def find_parts(modules: Collection[str], names: FileNames, config: ModelConfig) -> Parts:
    """The tensors of a base in the modules of files.

    Args:
        modules: That an adapter has.
        config: The base's, with a head of its own.
    """
    parts: dict[str, list[Part]] = defaultdict(list)
    canonical = {tensor.name: tensor for tensor in canonical_tensors(config)}
    for name, view in names.views(config, {f"{module}.weight" for module in modules}).items():
        # stacked experts have no suffix of their own
        parts[view.stored.removesuffix(".weight")].append((canonical[name], view))
    return parts


def find_targets(
    path: Path, pairs: Sequence[StoredPair], parts: Parts, config: ModelConfig
) -> list[tuple[StoredPair, list[Target]]]:
    """The canonical matrices of each pair.

    Args:
        path: Of the adapter, for refusals.
        parts: The base's matrices that each module of the pairs covers.
        config: The base's, with a head of its own.

    Raises:
        AdapterError: A module is not in the base, is not served, or has another shape there.
    """
    return [(pair, _targets(path, pair, parts.get(pair.module, ()), config)) for pair in pairs]


def _targets(path: Path, pair: StoredPair, parts: Sequence[Part], config: ModelConfig) -> list[Target]:
    if not parts:
        raise AdapterError(
            f"{path}: module {shown(pair.module)} is no matrix of the base {config.architecture} with "
            f"{config.num_layers} layers; load it with its own base"
        )
    targets = []
    for tensor, view in parts:
        _require_served(path, pair, tensor, config)
        _require_shape(path, pair, tensor, view)
        targets.append(Target(tensor.layer, tensor.module, _rows(view)))
    return targets


def _require_served(path: Path, pair: StoredPair, tensor: CanonicalTensor, config: ModelConfig) -> None:
    for start, reason in _REFUSED:
        if tensor.module.startswith(start):
            raise AdapterError(f"{path}: module {pair.module} is a target, and {reason}")
    latent = tensor.layer >= 0 and config.layers[tensor.layer].attention.latent is not None
    if tensor.module not in SERVED or (latent and tensor.module == "self_attn.q_proj"):
        raise AdapterError(
            f"{path}: module {pair.module} is a target, and adapters are served of queries, keys, values, "
            "outputs, dense MLPs and the head; train without it"
        )


def _require_shape(path: Path, pair: StoredPair, tensor: CanonicalTensor, view: TensorView) -> None:
    stored = view.stored_shape[::-1] if view.transposed else view.stored_shape
    wanted = (stored[0], tensor.shape[1])
    found = (pair.up.stored.shape[0], pair.down.stored.shape[1])
    if found != wanted:
        raise AdapterError(
            f"{path}: module {pair.module} is for a matrix of shape {list(found)}, the base's is "
            f"{list(wanted)}; load it with its own base"
        )


def _rows(view: TensorView) -> NDArray[np.int64] | None:
    """The stored rows of the canonical ones, in their order; None if they are the same."""
    stored = view.stored_shape[1] if view.transposed else view.stored_shape[0]
    if view.pairs is None and view.width == view.stride and view.shape[0] == stored:
        return None
    wanted = np.arange(view.shape[0])
    groups, positions = np.divmod(wanted, view.width)
    rows = view.first + groups * view.stride + positions
    if view.pairs is not None:
        pairs, by_head = view.pairs, rows.reshape(-1, view.pairs.head)
        part = slice(pairs.first, pairs.first + pairs.count)
        halved = by_head[:, part].reshape(len(by_head), -1, 2).transpose(0, 2, 1)
        by_head[:, part] = halved.reshape(len(by_head), -1).copy()
    return rows
