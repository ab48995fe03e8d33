"""Reads the kind and parameters of a model's rotary embedding, from the old and new spellings of its config.

transformers 5 writes `rope_parameters`; older files have `rope_theta` and a `rope_scaling` with its kind in
`rope_type` or `type`. The formulas are in `plain/rope.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from services.worker.engine.config.json_fields import JsonFields, ModelError
from services.worker.model_files.json_files import shown


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Parameters of the rotary embedding; those that a kind does not use keep their defaults.

    Attributes:
        dim: Dimensions of a head that are rotated, the first ones; even.
        theta: Base of the wavelengths.
        kind: `default`, `linear`, `dynamic`, `llama3`, `yarn` or `longrope`.
        factor: By which the context is stretched.
        original_length: Tokens of the context that the model was trained with, before it is stretched.
        low_freq_factor: llama3: `original_length` over the longest wavelength that is blended.
        high_freq_factor: llama3: `original_length` over the shortest wavelength that is blended.
        beta_fast: yarn: rotations within `original_length` of the fastest dimension that is blended.
        beta_slow: yarn: rotations within `original_length` of the slowest dimension that is blended.
        truncate: yarn: whether the blended dimensions are rounded outwards.
        attention_factor: yarn: factor of cosines and sines; 0 if the file does not give it.
        mscale: yarn: a parameter of the formula for that factor; 0 if the file does not give it.
        mscale_all_dim: yarn: the same.
        factors: longrope: by which each wavelength is multiplied, [dim / 2].
    """

    dim: int = 0
    factors: tuple[float, ...] = ()
    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    original_length: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 0.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0

    def context_length(self, max_positions: int) -> int:
        """Longest sequence in tokens, from the config's `max_position_embeddings`.

        For the kinds that stretch a model at run time that field holds the length before stretching, as their
        authors define it; in llama3 models it holds the length after.
        """
        if self.kind in ("linear", "dynamic", "yarn"):
            return int(self.original_length * self.factor)
        return max_positions


LAYER_KINDS = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeDefaults:
    """What a family assumes where a file says nothing.

    Attributes:
        theta: Base of the wavelengths.
        part: Part of a head's dimensions that is rotated; None: always all of them, another part is refused.
        fields: Of the object itself, if there is none.
        theta_name: What files call the base outside of the object.
        part_name: What files call that part outside of the object.
        by_kind: Files may have parameters for each kind of layers.
        original: Of a family whose files state the original length outside of the object: the default of it.
    """

    theta: float = 10000.0
    part: float | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    theta_name: str = "rope_theta"
    part_name: str = "partial_rotary_factor"
    by_kind: bool = False
    original: int = 0


def read_rope(
    config: JsonFields,
    head_dim: int,
    max_positions: int,
    defaults: RopeDefaults = RopeDefaults(),
    layer_kind: str = "",
) -> RopeConfig:
    """The rotary embedding of a whole config.json.

    Args:
        head_dim: Dimensions of a head, of which some may be rotated.
        max_positions: Tokens of the context that the config states.
        layer_kind: Of which kind of layers, such as `full_attention`, if the file may have parameters for
            each; those without a kind are then those of full attention.

    Raises:
        ModelError: An unknown kind, rotation of only a part of the head, or wrong parameters.
    """
    # the first one present, in the order of transformers
    name = next((n for n in ("rope_scaling", "rope_parameters") if config.get(n)), "rope_parameters")
    fields = config.table(name) if config.get(name) else config.with_defaults(**{name: {}}).table(name)
    if config.get(name) is None:
        fields = fields.with_defaults(**defaults.fields)
    nested = any(isinstance(value, dict) for value in fields.raw.values())
    if nested and not layer_kind and not defaults.by_kind:
        raise config.error(name, "one set of parameters for all layers")
    if layer_kind or defaults.by_kind:
        layer_kind = layer_kind or LAYER_KINDS[0]
        fields.ignore(*LAYER_KINDS)  # there may be no layer of a kind
        if nested:
            fields = fields.table(layer_kind)
        elif layer_kind != LAYER_KINDS[0]:
            fields = JsonFields(config.path, {})
    if defaults.original:
        original = config.integer("original_max_position_embeddings", defaults.original)
        fields = replace(fields, raw=fields.raw | {"original_max_position_embeddings": original})
    theta = fields.number("rope_theta", config.number(defaults.theta_name, defaults.theta))
    part = fields.number(
        "partial_rotary_factor", config.number(defaults.part_name, defaults.part or 1.0), most=1.0
    )
    if defaults.part is None and part != 1.0:
        raise config.error("partial_rotary_factor", "1 (this architecture rotates whole heads)")
    dim = int(head_dim * part)
    if head_dim % 2 and part == 1.0:
        raise config.error("head_dim", "even")
    if dim % 2 or not dim:
        raise config.error("partial_rotary_factor", "such that an even number of dimensions is rotated")
    kind = fields.get("rope_type") or fields.get("type") or "default"
    fields.ignore("type")
    read = _KINDS.get(kind) if isinstance(kind, str) else None
    if read is None:
        known = ", ".join(_KINDS)
        raise ModelError(f"{config.path}: `{name}` of type {shown(kind)} is not supported; known: {known}")
    if kind == "dynamic" and dim == 2:
        raise config.error("head_dim", "more than 2 with dynamic rope scaling")
    found = replace(read(fields, theta, max_positions), dim=dim)
    if found.factors and len(found.factors) != dim // 2:
        raise fields.error("long_factor", f"a list of {dim // 2} numbers, one for each wavelength")
    return found


def _default(fields: JsonFields, theta: float, max_positions: int) -> RopeConfig:
    return RopeConfig(theta=theta, original_length=max_positions)


def _linear(fields: JsonFields, theta: float, max_positions: int) -> RopeConfig:
    factor = fields.number("factor", least=1.0)
    return RopeConfig(theta=theta, kind="linear", factor=factor, original_length=max_positions)


def _dynamic(fields: JsonFields, theta: float, max_positions: int) -> RopeConfig:
    factor = fields.number("factor", least=1.0)
    return RopeConfig(theta=theta, kind="dynamic", factor=factor, original_length=max_positions)


def _llama3(fields: JsonFields, theta: float, max_positions: int) -> RopeConfig:
    low, high = fields.number("low_freq_factor"), fields.number("high_freq_factor")
    if high <= low:
        raise fields.error("high_freq_factor", f"greater than low_freq_factor ({low:g})")
    return RopeConfig(
        theta=theta,
        kind="llama3",
        factor=fields.number("factor", least=1.0),
        original_length=fields.integer("original_max_position_embeddings", max_positions),
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _yarn(fields: JsonFields, theta: float, max_positions: int) -> RopeConfig:
    original = fields.integer("original_max_position_embeddings", max_positions)
    stated = not fields.missing("original_max_position_embeddings")
    fast, slow = fields.number("beta_fast", 32.0), fields.number("beta_slow", 1.0)
    if fast < slow:
        raise fields.error("beta_fast", f"beta_slow ({slow:g}) or more")

    def optional(name: str) -> float:
        return 0.0 if fields.missing(name) else fields.number(name)

    return RopeConfig(
        theta=theta,
        kind="yarn",
        # a file may give both lengths instead of the factor
        factor=fields.number("factor", max_positions / original if stated else None, least=1.0),
        original_length=original,
        beta_fast=fast,
        beta_slow=slow,
        truncate=fields.flag("truncate", True),
        attention_factor=optional("attention_factor"),
        mscale=optional("mscale"),
        mscale_all_dim=optional("mscale_all_dim"),
    )


def _longrope(fields: JsonFields, theta: float, max_positions: int) -> RopeConfig:
    """LongRoPE (Ding et al., 2024): files have factors for short and for long contexts.

    One of the two is chosen for all positions, because a block of KV means the same in every sequence: the
    long ones if the context that is served is longer than the original one.
    """
    original = fields.integer("original_max_position_embeddings", max_positions)
    long, short = fields.numbers("long_factor"), fields.numbers("short_factor")
    if len(short) != len(long):
        raise fields.error("short_factor", f"a list of {len(long)} numbers, as `long_factor` is")
    return RopeConfig(
        theta=theta,
        kind="longrope",
        factor=fields.number("factor", max(1.0, max_positions / original)),
        original_length=original,
        attention_factor=0.0 if fields.missing("attention_factor") else fields.number("attention_factor"),
        factors=long if max_positions > original else short,
    )


_KINDS: dict[str, Callable[[JsonFields, float, int], RopeConfig]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,
}
