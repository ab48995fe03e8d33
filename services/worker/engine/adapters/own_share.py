"""Cuts an adapter as the base's matrices are cut over ranks.

Of a column-parallel matrix a rank has some outputs, and so the rows of `up` for these, and all of `down`. Of
a row-parallel one it has some inputs, and so the columns of `down` for these, and all of `up`. Factors are
cut as outputs are.
"""

from contextlib import ExitStack

import numpy as np
import torch
from torch import Tensor

from services.worker.adapters.adapter import AdapterFiles
from services.worker.adapters.base_model import BaseModel
from services.worker.adapters.targets import HEAD, ROW_PARALLEL
from services.worker.adapters.tensor_values import Floats
from services.worker.engine.adapters.row_factors import open_base_rows
from services.worker.engine.adapters.weights import AdapterWeights, LowRank
from services.worker.engine.checkpoint.rank_shares import share_of_mlp, share_of_vocabulary
from services.worker.engine.config.layer import ExpertsConfig
from services.worker.engine.config.model import ModelConfig


def own_share(adapter: AdapterFiles, base: BaseModel, rank: int, world: int) -> AdapterWeights:
    """What this rank has of an adapter; memory is shared with it where nothing is cut.

    Raises:
        AdapterError: It has magnitudes that its base's rows cannot be given.
    """
    layers: dict[tuple[int, str], LowRank] = {}
    head = None
    with ExitStack() as files:
        rows = files.enter_context(open_base_rows(base.path)) if adapter.has_magnitudes else None
        for (layer, module), matrices in adapter.matrices.items():
            own = _own_part(base.config, layer, module, rank, world)
            outputs, inputs = own, range(matrices.down.shape[1])
            if module in ROW_PARALLEL:
                outputs, inputs = range(len(matrices.up)), own
            factors = None
            if matrices.magnitude is not None:
                assert rows is not None  # there are magnitudes
                factors = rows.factors(layer, module, matrices, outputs)
            low = LowRank(
                _tensor(matrices.down[:, inputs.start : inputs.stop]),
                _tensor(matrices.up[outputs.start : outputs.stop]),
                factors,
            )
            if module == HEAD:
                head = low
            else:
                layers[layer, module] = low
    whole = None
    if adapter.head is not None:
        ids = _own_part(base.config, -1, HEAD, rank, world)
        whole = _tensor(adapter.head[ids.start : ids.stop])
    return AdapterWeights(layers, head, whole)


def _own_part(config: ModelConfig, layer: int, module: str, rank: int, world: int) -> range:
    """The outputs of a matrix that this rank has, or the inputs of a row-parallel one."""
    if module == HEAD:
        return share_of_vocabulary(config.vocab_size, rank, world)
    if module.startswith("mlp."):
        mlp = config.layers[layer].mlp
        assert not isinstance(mlp, ExpertsConfig)  # adapters of experts are refused
        return share_of_mlp(mlp.inner, rank, world)
    latent = config.layers[layer].attention.latent
    if module in ("self_attn.k_proj", "self_attn.v_proj"):
        heads, width = config.kv_heads_of(rank, world), config.head_dim
    else:
        heads, width = config.heads_of(rank, world), latent.value_dim if latent else config.head_dim
    return range(heads.start * width, heads.stop * width)


def _tensor(values: Floats) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))
