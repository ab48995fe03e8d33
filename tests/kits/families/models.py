"""Makes the models of the table, and what transformers computes with them, once in a process."""

import atexit
import shutil
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from services.worker.engine.config.families.registry import FAMILIES
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.read_config import read_config
from tests.kits.families.dense_entries import DENSE
from tests.kits.families.entries import VOCABULARY, FamilyEntry
from tests.kits.families.expert_entries import EXPERTS
from tests.kits.families.older_entries import OLDER

ENTRIES: dict[str, FamilyEntry] = DENSE | OLDER | EXPERTS
LENGTH = 100  # tokens of a text
TEXTS = {"a": 1, "b": 2, "c": 3}  # name -> seed


def served(entries: dict[str, FamilyEntry]) -> list[str]:
    """Names of those entries whose architecture is served."""
    return [name for name, entry in entries.items() if entry.architecture in FAMILIES]


def each_once(names: list[str]) -> list[str]:
    """The first entry of each architecture."""
    first = {ENTRIES[name].architecture: name for name in reversed(names)}
    return [name for name in names if name in first.values()]


@dataclass(frozen=True, slots=True)
class FamilyModel:
    """A model of the table.

    Attributes:
        entry: Its entry.
        directory: Its files.
        config: As it is read from there.
        logits: Of transformers, after each token of each text, [tokens, vocab].
    """

    entry: FamilyEntry
    directory: Path
    config: ModelConfig
    logits: dict[str, Tensor]


@cache
def family_model(name: str) -> FamilyModel:
    """Makes a model of the table, in a directory that is removed when the process ends."""
    entry, directory = ENTRIES[name], Path(mkdtemp(prefix="family-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    model = random_model(name)
    model.save_pretrained(directory)
    rows = _whole_logits(model, [text(key) for key in TEXTS])
    logits = dict(zip(TEXTS, rows, strict=True))
    return FamilyModel(entry, directory, read_config(directory), logits)


def save_model(entry: FamilyEntry, directory: Path) -> Path:
    """Writes the random model of an entry; returns the directory."""
    _random_model(entry).save_pretrained(directory)
    return directory


@cache
def text(key: str) -> list[int]:
    """The tokens of a text."""
    draw = torch.Generator().manual_seed(TEXTS[key])
    drawn: list[int] = torch.randint(0, VOCABULARY, (LENGTH,), generator=draw).tolist()
    return drawn


def make_family(name: str, directory: Path, **changes: Any) -> Path:
    """Writes a model of the table with other values of some fields; returns the directory."""
    entry = ENTRIES[name]
    _random_model(replace(entry, fields=entry.fields | changes)).save_pretrained(directory)
    return directory


def save_in_memory_names(name: str, directory: Path) -> dict[str, Tensor]:
    """Writes the model with the names that transformers 5 uses in memory; returns the tensors of the file."""
    random_model(name).save_pretrained(directory, save_original_format=False)
    return load_file(directory / "model.safetensors")


def transformers_greedy(name: str, tokens: list[int], prompt: int) -> tuple[list[int], float]:
    """The tokens that transformers finds likeliest after each of the tokens from the prompt's last one on.

    Returns:
        The tokens, and by how much the closest decision was made.
    """
    rows = _whole_logits(random_model(name), [tokens])[0]
    best = rows[prompt - 1 : -1].topk(2)
    return best.indices[:, 0].tolist(), float((best.values[:, 0] - best.values[:, 1]).min())


@cache
def random_model(name: str) -> Any:
    """The entry's model in transformers."""
    return _random_model(ENTRIES[name])


def _random_model(entry: FamilyEntry) -> Any:
    """The same weights each time."""
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415 (slow to import)

    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(entry.model_type, **entry.fields))
    with torch.no_grad():
        for part, values in [*model.named_parameters(), *model.named_buffers()]:
            if "bias" in part or "sinks" in part:
                values.copy_(0.3 * torch.randn_like(values))
            elif (values.ndim == 1 and "norm" in part) or "ln_" in part:
                values.copy_(1 + 0.3 * torch.randn_like(values))
    assert type(model).__name__ == entry.architecture
    return model.eval()


def _whole_logits(model: Any, texts: list[list[int]]) -> Tensor:
    """[texts, tokens, vocab]."""
    with torch.no_grad():
        logits: Tensor = model(torch.tensor(texts), use_cache=False).logits
    return logits
