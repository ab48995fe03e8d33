"""How the files of a family name and lay out tensors; finds the view of each tensor that a config demands."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from services.worker.engine.checkpoint.names.canonical import (
    CanonicalTensor,
    canonical_name,
    canonical_tensors,
)
from services.worker.engine.checkpoint.names.tensor_view import RowPairs, TensorView
from services.worker.engine.config.model import ModelConfig


@dataclass(frozen=True, slots=True)
class TensorLocation:
    """Where files have a module.

    Attributes:
        module: Its name, in a layer that without the layer's prefix; `{}` stands for the number of an expert
            or head.
        parts: The canonical modules that are fused in it, from the first rows to the last; none: it alone.
        by_kv_head: The parts' rows come KV head by KV head: its queries, its keys, its values.
        alternating: The parts' rows alternate.
        by_item: The parts' rows come head by head, or expert by expert.
        transposed: Matrices are stored as [in, out].
        stacked: The first dimension is that of experts or heads.
        suffixes: What follows the name, for a weight and for a bias.
    """

    module: str
    parts: tuple[str, ...] = ()
    by_kv_head: bool = False
    alternating: bool = False
    by_item: bool = False
    transposed: bool = False
    stacked: bool = False
    suffixes: tuple[str, str] = (".weight", ".bias")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileNames:
    """How files name tensors.

    Attributes:
        modules: The names of each canonical module, of which the first one that the files have is taken.
        layer: Prefix of a layer's modules.
        prefixes: Of all names; the first one that a name in the files has is taken.
        interleaved: Rows of queries and keys that are rotated together are stored next to each other.
        ignored: Regular expressions of names that may be there and are not read.
        later_layers: Files may have layers beyond the last, which are not read: those that predict several
            tokens at once.
    """

    modules: Mapping[str, tuple[TensorLocation, ...]]
    layer: str = "model.layers.{}."
    prefixes: tuple[str, ...] = ("",)
    interleaved: bool = False
    ignored: tuple[str, ...] = ()
    later_layers: bool = False

    def with_locations(
        self, changes: "Mapping[str, str | TensorLocation | tuple[TensorLocation, ...]]"
    ) -> "FileNames":
        """The same with other names of some modules; a text is a name alone."""
        locations = {name: _locations(location) for name, location in changes.items()}
        return replace(self, modules={**self.modules, **locations})

    def views(self, config: ModelConfig, stored: Collection[str]) -> dict[str, TensorView]:
        """The view of each tensor that the config demands, by its canonical name.

        Args:
            stored: Names in the files; none: those that new files get.
        """
        prefix = next(
            (p for p in self.prefixes if any(name.startswith(p) for name in stored)), self.prefixes[0]
        )
        tensors = {tensor.name: tensor for tensor in canonical_tensors(config)}
        counts = Counter((t.layer, t.module, t.suffix) for t in tensors.values())
        views = {}
        for name, tensor in tensors.items():
            found = [
                (location, self._stored_name(prefix, location, tensor))
                for location in self.modules[tensor.module]
            ]
            location, stored_name = next((each for each in found if each[1] in stored), found[0])
            count = counts[tensor.layer, tensor.module, tensor.suffix]
            views[name] = _view(
                stored_name, location, tensor, tensors, kv_heads=config.num_kv_heads, count=count
            )
            if self.interleaved:
                views[name] = replace(views[name], pairs=_pairs(config, tensor))
        return views

    def is_later(self, name: str, num_layers: int) -> bool:
        """Whether a stored tensor belongs to a layer that is not read."""
        begin, end = self.layer.split("{}")
        number = name.removeprefix(begin).split(end)[0]
        return self.later_layers and name.startswith(begin) and number.isdigit() and int(number) >= num_layers

    def _stored_name(self, prefix: str, location: TensorLocation, tensor: CanonicalTensor) -> str:
        layer = self.layer.format(tensor.layer) if tensor.layer >= 0 else ""
        suffix = {"weight": location.suffixes[0], "bias": location.suffixes[1]}.get(tensor.suffix, "")
        # a head is never tied to the decoder's prefix
        prefix = "" if tensor.module == "lm_head" else prefix
        return prefix + layer + location.module.format(tensor.item) + suffix


def _locations(location: str | TensorLocation | tuple[TensorLocation, ...]) -> tuple[TensorLocation, ...]:
    if isinstance(location, str):
        return (TensorLocation(location),)
    return location if isinstance(location, tuple) else (location,)


def _view(
    stored: str,
    location: TensorLocation,
    tensor: CanonicalTensor,
    tensors: Mapping[str, CanonicalTensor],
    *,
    kv_heads: int,
    count: int,
) -> TensorView:
    rows, first, total, stride = tensor.shape[0], 0, tensor.shape[0], 0
    width = rows
    if location.parts:
        names = [canonical_name(part, tensor.suffix, tensor.layer, tensor.item) for part in location.parts]
        sizes = [tensors[name].shape[0] for name in names]
        total, before = sum(sizes), sum(sizes[: location.parts.index(tensor.module)])
        units = kv_heads if location.by_kv_head else rows if location.alternating else 1
        width, first, stride = rows // units, before // units, total // units
        if location.by_item:
            first, total = before + tensor.item * total, total * count
            width = stride = rows
    shape: tuple[int, ...] = (total, *tensor.shape[1:])
    transposed = location.transposed and len(shape) == 2
    if transposed:
        shape = shape[::-1]
    return TensorView(
        stored=stored,
        shape=tensor.shape,
        stored_shape=(count, *shape) if location.stacked else shape,
        index=tensor.item if location.stacked else None,
        first=first,
        width=width,
        stride=stride or width,
        transposed=transposed,
    )


def _pairs(config: ModelConfig, tensor: CanonicalTensor) -> RowPairs | None:
    """The rows of a layer's queries and keys that are rotated together."""
    attention = config.layers[tensor.layer].attention if tensor.layer >= 0 else None
    if attention is None or attention.rope is None:
        return None
    latent, module = attention.latent, tensor.module.removeprefix("self_attn.").removesuffix(".{}")
    if latent is None:
        rotated = module in ("q_proj", "k_proj", "q_norm", "k_norm")
        return RowPairs(config.head_dim, 0, attention.rope.dim) if rotated else None
    before = {"q_proj": latent.plain_dim, "q_b_proj": latent.plain_dim, "kv_a_proj": latent.rank}.get(module)
    return None if before is None else RowPairs(before + latent.rope_dim, before, latent.rope_dim)
