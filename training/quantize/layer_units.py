"""The linears of a layer that share an input, where they are stored, and what can divide that input."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from services.worker.engine.checkpoint.names.tensor_view import LocatedTensor, TensorView
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.layer import ExpertsConfig, LayerConfig, MlpConfig
from services.worker.engine.config.model import ModelConfig

UnitName = Literal["qkv", "output", "gate_up", "down"]
# the input of `down` is this activation's gate times up, so a division may go into the rows of up
_PRODUCTS = ("silu", "gelu", "gelu_tanh", "relu", "relu2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Linears of one layer with the same input.

    Attributes:
        linears: Canonical names of their weights.
        norm: Canonical name of the norm that makes the input and nothing else, without `.weight`; or None.
        rows: Canonical name of the weight whose rows make the input, each one factor of a feature; or None.
    """

    name: UnitName
    linears: tuple[str, ...]
    norm: str | None = None
    rows: str | None = None


def layer_units(config: ModelConfig, index: int) -> list[Unit]:
    """Return the units of a layer, those whose rows another one changes before it.

    Raises:
        ModelError: The layer has linears that are not quantized here.
    """
    layer, name = config.layers[index], f"model.layers.{index}"
    if layer.attention.latent is not None:
        raise ModelError("ryz quantize does not take models with latent attention; they are served in bf16")
    if isinstance(layer.mlp, ExpertsConfig):
        raise ModelError(
            "ryz quantize does not take mixtures of experts yet; serve them with --precision int8"
        )
    attention, mlp = f"{name}.self_attn", f"{name}.mlp"
    gated = (f"{mlp}.gate_proj.weight",) if layer.mlp.gated else ()
    up = f"{mlp}.up_proj.weight"
    mlp_norm = layer.mlp_norm is not None and not layer.mlp_norm.offset and not layer.parallel
    return [
        Unit(
            name="qkv",
            linears=tuple(f"{attention}.{part}_proj.weight" for part in "qkv"),
            norm=f"{name}.input_norm" if _feeds_attention_alone(layer) else None,
        ),
        Unit(name="output", linears=(f"{attention}.o_proj.weight",)),
        # before `gate_up`, because its factors go into the rows of up
        Unit(name="down", linears=(f"{mlp}.down_proj.weight",), rows=up if _up_scales(layer.mlp) else None),
        Unit(name="gate_up", linears=(*gated, up), norm=f"{name}.mlp_norm" if mlp_norm else None),
    ]


def stored_rows(view: TensorView) -> list[int]:
    """Return which rows of the stored tensor the rows of a canonical one are."""
    return [view.stored_row(row) for row in range(view.shape[0])]


def stored_names(unit: Unit, located: Mapping[str, LocatedTensor]) -> list[str]:
    """Return the stored tensors of a unit.

    Raises:
        ModelError: One is stored in a way that compressed-tensors does not have.
    """
    names = dict[str, None]()
    for name in unit.linears:
        view = located[name].view
        if view.transposed or view.index is not None or view.pairs is not None:
            raise ModelError(
                f"tensor {view.stored} is not stored as [outputs, inputs], so it cannot be quantized"
            )
        names[view.stored] = None
    return list(names)


def _feeds_attention_alone(layer: LayerConfig) -> bool:
    norm = layer.input_norm
    return norm is not None and not norm.offset and not (layer.parallel and layer.mlp_norm is None)


def _up_scales(mlp: MlpConfig) -> bool:
    return mlp.gated and not mlp.bias and mlp.inner_norm is None and mlp.activation in _PRODUCTS
