"""Loads this rank's inner features of one layer's MLP, or of each of its experts."""

import torch
from torch import Tensor

from services.worker.engine.checkpoint.codes.encoded_matrix import EncodedMatrix, Matrix
from services.worker.engine.checkpoint.layer_weights import ExpertsWeights, MlpWeights
from services.worker.engine.checkpoint.weight_source import TensorRows, WeightSource
from services.worker.engine.config.layer import ExpertsConfig, MlpConfig


def load_mlp(
    source: WeightSource, name: str, mlp: MlpConfig, dtype: torch.dtype | None = torch.float32
) -> MlpWeights:
    """A dense feed-forward layer; `dtype` of the matrices, None for the stored one."""
    own, norm = source.own_part(mlp.inner), mlp.inner_norm
    return MlpWeights(
        gate_up=source.read_matrix_rows(_gate_up(source, name, mlp, "weight"), dtype),
        gate_up_bias=source.read_rows(_gate_up(source, name, mlp, "bias")) if mlp.bias else None,
        down=source.read_matrix(f"{name}.down_proj.weight", columns=own, dtype=dtype),
        down_bias=source.load_replicated(f"{name}.down_proj.bias") if mlp.down_bias else None,
        inner_norm=source.load_norm_part(f"{name}.inner_norm", norm, own) if norm else None,
    )


def load_experts(
    source: WeightSource,
    name: str,
    experts: ExpertsConfig,
    hidden: int,
    dtype: torch.dtype | None = torch.float32,
) -> ExpertsWeights:
    """A mixture of experts; `dtype` of the matrices but the router, None for the stored one."""
    expert, each = experts.expert, [f"{name}.experts.{number}" for number in range(experts.count)]
    own = source.own_part(expert.inner)
    matrices = _code_matrices(source, each, expert, own) if dtype is None and source.codes else None
    gate_up, down = matrices or _float_matrices(source, each, expert, hidden, dtype)
    router, shared = f"{name}.router", experts.shared
    return ExpertsWeights(
        router=source.load_replicated(f"{router}.weight"),
        router_bias=source.load_replicated(f"{router}.bias") if experts.router_bias else None,
        selection_bias=(
            source.load_replicated(f"{router}.selection_bias") if experts.selection_bias else None
        ),
        gate_up=gate_up,
        gate_up_bias=(
            _stacked([source.read_rows(_gate_up(source, one, expert, "bias")) for one in each])
            if expert.bias
            else None
        ),
        down=down,
        down_bias=(
            _stacked([source.load_replicated(f"{one}.down_proj.bias") for one in each])
            if expert.down_bias
            else None
        ),
        shared=load_mlp(source, f"{name}.shared", shared, dtype) if shared else None,
        shared_gate=_shared_gate(source, name, dtype) if experts.shared_gate else None,
    )


def _code_matrices(
    source: WeightSource, each: list[str], expert: MlpConfig, own: slice
) -> tuple[list[Matrix], list[Matrix]] | None:
    """Both matrices of each expert as codes; None if some cannot be held so."""
    gate_up = [source.read_matrix_rows(_gate_up(source, one, expert, "weight"), None) for one in each]
    down = [source.read_matrix(f"{one}.down_proj.weight", columns=own, dtype=None) for one in each]
    are_codes = all(isinstance(one, EncodedMatrix) and one.order is None for one in (*gate_up, *down))
    return (gate_up, down) if are_codes else None


def _float_matrices(
    source: WeightSource, each: list[str], expert: MlpConfig, hidden: int, dtype: torch.dtype | None
) -> tuple[Tensor, Tensor]:
    """[experts, outputs, inputs] of both matrices."""
    own = source.own_part(expert.inner)
    width = own.stop - own.start
    up_rows = _gate_up(source, each[0], expert, "weight")
    kind = dtype or source.dtype_of(*(f"{one}.{part}.weight" for one in each for part in _parts(expert)))
    down_kind = dtype or source.dtype_of(*(f"{one}.down_proj.weight" for one in each))
    gate_up = torch.empty(len(each), len(up_rows) * width, hidden, dtype=kind)
    down = torch.empty(len(each), hidden, width, dtype=down_kind)
    for number, one in enumerate(each):
        for part, out in zip(
            _gate_up(source, one, expert, "weight"), torch.split(gate_up[number], width), strict=True
        ):
            source.read_into(out, part.name, part.rows)
        source.read_into(down[number], f"{one}.down_proj.weight", columns=own)
    return gate_up, down


def _parts(mlp: MlpConfig) -> tuple[str, ...]:
    return ("gate_proj", "up_proj") if mlp.gated else ("up_proj",)


def _gate_up(source: WeightSource, name: str, mlp: MlpConfig, suffix: str) -> list[TensorRows]:
    own = source.own_part(mlp.inner)
    return [TensorRows(f"{name}.{part}.{suffix}", own) for part in _parts(mlp)]


def _shared_gate(source: WeightSource, name: str, dtype: torch.dtype | None) -> Tensor:
    gate = f"{name}.shared_gate.weight"
    return source.load_replicated(gate).to(dtype or source.dtype_of(gate))


def _stacked(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts)
