"""Changes one field of a model's config: then we refuse the model, or compute what transformers computes."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from services.worker.engine.checkpoint.tensor_table import TensorTable, stored_tensors
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.read_config import read_config
from services.worker.rank_protocol.plan import StepPlan
from tests.kits.engine.plans import Blocks, new_sequence
from tests.kits.engine.rank_threads import COMPUTES, plan_logits
from tests.kits.families.models import ENTRIES, family_model, random_model, text
from tests.kits.families.step_plans import NUM_BLOCKS

LENGTH = 48  # tokens; more than the windows and original context lengths of the table
TOLERANCE = 1e-4
REMOVED = "(removed)"
# with it transformers 5.23 computes Falcon's attention in another way, without a mask
_NOT_COMPARED = "output_attentions"
# values of fields that are null or absent
_VALUES: tuple[Any, ...] = (True, False, 1, 2, 0.5, "gelu", [0, 1, 0], {"factor": 2.0})
_WORDS = ("gelu", "relu", "gelu_pytorch_tanh", "full_attention", "softmax", "sigmoid", "greedy", "linear")


@cache
def all_changes(name: str) -> tuple[tuple[tuple[str, ...], Any], ...]:
    """Paths of fields in the entry's config, and other values for each."""
    raw = json.loads((family_model(name).directory / "config.json").read_text())
    found = list(_changes(raw, ()))
    found += [((field,), value) for field in _other_fields() if field not in raw for value in _VALUES]
    return tuple((path, value) for path, value in found if path[0] != _NOT_COMPARED)


def check_change(name: str, path: tuple[str, ...], value: Any) -> str:
    """Compares the last logits of a text under the changed config; says what happened.

    Raises:
        AssertionError: We compute something else than transformers.
    """
    with _changed(name, path, value) as directory:
        try:
            config = read_config(directory)
            TensorTable(directory, stored_tensors(directory)).check(config)
        except ModelError as error:
            return f"refused: {error}"
        if config.context_length < LENGTH or _chooses_by_length(config):
            return "not comparable"
        theirs = _their_logits(name, directory)
        if theirs is None:
            return "transformers refuses"
        torch.testing.assert_close(_our_logits(directory), theirs, atol=TOLERANCE, rtol=0)
    return "equal"


def _chooses_by_length(config: ModelConfig) -> bool:
    """Whether transformers would use the short factors of LongRoPE for the text, and we the long ones."""
    ropes = [layer.attention.rope for layer in config.layers]
    return any(
        rope is not None and rope.kind == "longrope" and rope.original_length >= LENGTH for rope in ropes
    )


def _changes(raw: dict[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for field, value in raw.items():
        here = (*path, field)
        yield here, REMOVED
        yield here, None
        if isinstance(value, dict):
            yield from _changes(value, here)
        for other in _others(value):
            if other != value or type(other) is not type(value):
                yield here, other


def _others(value: Any) -> tuple[Any, ...]:
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return (value + 1, value * 2, max(1, value // 2), 0, -1, float(value))
    if isinstance(value, float):
        return (value * 1.5, value / 2, 0, 1.0)
    if isinstance(value, str):
        return (*_WORDS, 1)
    if isinstance(value, list):
        return (value[::-1], value[1:] + value[:1], value[1:], [])
    return _VALUES if value is None else ({},)


@cache
def _other_fields() -> tuple[str, ...]:
    """All fields of all configs of the table."""
    from transformers import AutoConfig  # noqa: PLC0415 (slow to import)

    kinds = sorted({entry.model_type for entry in ENTRIES.values()})
    found = {field for kind in kinds for field in AutoConfig.for_model(kind).to_dict()}
    more = {"head_dim", "partial_rotary_factor", "rope_theta", "rope_scaling", "sliding_window_pattern"}
    return tuple(sorted(found | more))


@contextmanager
def _changed(name: str, path: tuple[str, ...], value: Any) -> Iterator[Path]:
    """A directory with the entry's weights and the changed config."""
    source = family_model(name).directory
    raw = json.loads((source / "config.json").read_text())
    table = raw
    for field in path[:-1]:
        table = table[field]
    if value == REMOVED:
        del table[path[-1]]
    else:
        table[path[-1]] = value
    with TemporaryDirectory(prefix="changed-") as made:
        directory = Path(made)
        shutil.copy(source / "model.safetensors", directory)
        (directory / "config.json").write_text(json.dumps(raw))
        yield directory


def _their_logits(name: str, directory: Path) -> Tensor | None:
    """Of transformers, with the entry's weights; None if it refuses the config or the weights."""
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415 (slow to import)

    try:
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory)).eval()
        model.load_state_dict(random_model(name).state_dict())
        with torch.no_grad():
            logits: Tensor = model(torch.tensor([text("a")[:LENGTH]]), use_cache=False).logits[0, -1]
    except Exception:
        return None
    return logits


def _our_logits(directory: Path) -> Tensor:
    tokens = text("a")[:LENGTH]
    part = Blocks(NUM_BLOCKS).chunk(1, 0, tokens)
    plan = StepPlan(step_id=1, admit=[new_sequence(1, tokens)], chunks=[part])
    return plan_logits(directory, 1, [plan], NUM_BLOCKS, COMPUTES["plain"])[0][0]
