"""Reads `adapter_config.json` of a PEFT directory: ranks, scales, and what is not served.

A field that this module does not know is refused unless it is switched off, because what it changes in the
computation is not known. What the files have decides which layers and modules are changed, so fields that
choose these are not read.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from services.worker.adapters.description import AdapterError
from services.worker.adapters.stored_pair import require_scale
from services.worker.model_files.json_files import BadFile, read_object, shown

Number = TypeVar("Number", int, float)

CONFIG = "adapter_config.json"
_MOST_BYTES = 2**20
_MOST_PATTERNS = 4096
_LONGEST_PATTERN = 512

# they say how it was trained, or which modules it has, which the tensors say as well
_WITHOUT_EFFECT = {
    *("auto_mapping", "base_model_name_or_path", "corda_config", "eva_config", "exclude_modules"),
    *("fan_in_fan_out", "inference_mode", "init_lora_weights", "layers_pattern", "layers_to_transform"),
    *("loftq_config", "lora_dropout", "lora_ga_config", "megatron_core", "peft_type", "peft_version"),
    "qalora_group_size",
    *("revision", "runtime_config", "target_modules", "task_type", "ensure_weight_tying"),
}
_READ = {
    "r",
    "lora_alpha",
    "rank_pattern",
    "alpha_pattern",
    "use_rslora",
    "use_dora",
    "bias",
    "modules_to_save",
}
_REFUSED = {
    "lora_bias": "biases of adapters are not served; train with lora_bias=false",
    "target_parameters": "adapters of parameters, such as experts, are not served; target linear modules",
    "trainable_token_indices": "trained embeddings are not served; train without trainable_token_indices",
    "layer_replication": "replicated layers are not served; train without layer_replication",
    "alora_invocation_tokens": "adapters that begin at a token are not served; train an ordinary LoRA",
}
# they change the base's weights before training, so that the adapter alone is not what was trained
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """The fields that change what an adapter computes.

    Attributes:
        ranks: By pattern of a module's name; others have `rank`.
        alphas: The same of `alpha`.
        root_scaled: The scale is alpha / sqrt(rank), not alpha / rank (rsLoRA; Kalajdzievski, 2023).
        has_magnitudes: Each pair has a magnitude (DoRA; Liu et al., arXiv 2402.09353).
        whole_modules: They replace those of the base.
    """

    path: Path
    rank: int
    alpha: float
    ranks: dict[str, int]
    alphas: dict[str, float]
    root_scaled: bool
    has_magnitudes: bool
    whole_modules: tuple[str, ...]

    def rank_of(self, module: str) -> int:
        """The rank of a module."""
        return _matching(self.ranks, module, self.rank)

    def scale_of(self, module: str, rank: int) -> float:
        """What its product is multiplied with.

        Raises:
            AdapterError: It is absurd.
        """
        alpha = _matching(self.alphas, module, self.alpha)
        divisor = math.sqrt(rank) if self.root_scaled else rank
        return require_scale(self.path, f"`lora_alpha` {alpha:g} of {module}", alpha / divisor)


def read_peft_config(path: Path) -> PeftConfig:
    """Reads the file.

    Raises:
        AdapterError: It is missing or damaged, or demands what is not served.
    """
    try:
        raw = read_object(path, _MOST_BYTES)
    except FileNotFoundError:
        raise AdapterError(f"{path} does not exist; an adapter is a PEFT directory or a GGUF file") from None
    except BadFile as error:
        raise AdapterError(f"{path} {error}; export the adapter again") from error
    kind = raw.get("peft_type")
    if kind != "LORA":
        raise AdapterError(f"{path}: `peft_type` is {shown(kind)}, only LORA is served; train a LoRA")
    _refuse_unknown(path, raw)
    fields = _Fields(path, raw)
    return PeftConfig(
        path,
        fields.rank("r", raw.get("r", 8)),
        fields.alpha("lora_alpha", raw.get("lora_alpha", 8)),
        {key: fields.rank(f"rank_pattern.{key}", value) for key, value in fields.patterns("rank_pattern")},
        {key: fields.alpha(f"alpha_pattern.{key}", value) for key, value in fields.patterns("alpha_pattern")},
        fields.flag("use_rslora"),
        fields.flag("use_dora"),
        fields.names("modules_to_save"),
    )


def _refuse_unknown(path: Path, raw: dict[str, Any]) -> None:
    if raw.get("bias") not in (None, "none"):
        raise AdapterError(
            f"{path}: `bias` is {shown(raw['bias'])}, biases of adapters are not served; train with bias=none"
        )
    initial = raw.get("init_lora_weights")
    if isinstance(initial, str) and initial.lower().startswith(_CHANGES_BASE):
        raise AdapterError(
            f"{path}: `init_lora_weights` is {shown(initial)}, which changes the base's weights; convert the "
            "adapter to a plain LoRA when it is saved"
        )
    if raw.get("modules_to_save") and raw.get("ensure_weight_tying"):
        raise AdapterError(
            f"{path}: `ensure_weight_tying` is set, and an embedding that is trained along with the head is "
            "not served; train with ensure_weight_tying=false"
        )
    for name, value in raw.items():
        if name in _READ or name in _WITHOUT_EFFECT or not value:
            continue
        if name in _REFUSED:
            raise AdapterError(f"{path}: `{name}` is set: {_REFUSED[name]}")
        raise AdapterError(
            f"{path}: `{name}` is not supported, because what it changes is not known; train without it"
        )


@dataclass(frozen=True, slots=True)
class _Fields:
    path: Path
    raw: dict[str, Any]

    def error(self, name: str, expected: str, value: object) -> AdapterError:
        return AdapterError(
            f"{self.path}: `{name}` must be {expected}, got {shown(value)}; export the adapter again"
        )

    def rank(self, name: str, value: object) -> int:
        if type(value) is not int or value < 1:
            raise self.error(name, "a positive integer", value)
        return value

    def alpha(self, name: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(name, "a number", value)
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self.error(name, "a finite number", value)
        return number

    def flag(self, name: str) -> bool:
        value = self.raw.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.error(name, "true or false", value)
        return bool(value)

    def names(self, name: str) -> tuple[str, ...]:
        value = self.raw.get(name) or []
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self.error(name, "a list of names of modules", value)
        return tuple(value)

    def patterns(self, name: str) -> list[tuple[str, object]]:
        table = self.raw.get(name)
        if table is None:
            return []
        if not isinstance(table, dict) or len(table) > _MOST_PATTERNS:
            raise self.error(name, f"an object of at most {_MOST_PATTERNS} fields", table)
        for key in table:
            if not _is_pattern(key):
                raise self.error(name, "an object whose keys are names of modules", key)
        return list(table.items())


def _is_pattern(key: str) -> bool:
    """Whether a key is a name, or a regular expression that is matched quickly.

    Those that an untrusted file could let a matcher run on for hours have nested or many repetitions.
    """
    if len(key) > _LONGEST_PATTERN or len(re.findall(r"[*+{]", key)) > 2 or re.search(r"\)[*+?{]", key):
        return False
    try:
        re.compile(key)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _matching(values: dict[str, Number], module: str, default: Number) -> Number:
    """The value of the first pattern that the end of a module's name matches, as PEFT has it."""
    for key, value in values.items():
        if re.match(rf"(.*\.)?({key})$", module):
            return value
    return default
