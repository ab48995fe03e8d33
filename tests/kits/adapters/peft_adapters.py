"""Makes random adapters with PEFT, and computes with them; the oracle of our own reading and computing."""

import copy
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.kits.families.models import random_model

UP_SCALE = 0.05  # of what is drawn for B; the logits then differ by tenths
MOST_STRETCH = 0.2  # of the rows' norms


@dataclass(frozen=True, slots=True)
class AdapterEntry:
    """A LoRA to be made.

    Attributes:
        targets: As PEFT names target modules; `all-linear` leaves the head out.
        more: Further fields of `LoraConfig`.
    """

    rank: int
    targets: str | Sequence[str] = "all-linear"
    more: dict[str, Any] = field(default_factory=dict)


def save_adapter(family: str, entry: AdapterEntry, directory: Path, seed: int = 1) -> Path:
    """Writes a random adapter of a model of the table as PEFT does; returns the directory."""
    return save_adapter_of(random_model(family), entry, directory, seed)


def save_adapter_of(
    base: Any, entry: AdapterEntry, directory: Path, seed: int = 1, *, up_scale: float = UP_SCALE
) -> Path:
    """The same of a model of transformers, which stays as it is."""
    from peft import LoraConfig, get_peft_model  # noqa: PLC0415 (slow to import)

    targets = entry.targets if isinstance(entry.targets, str) else list(entry.targets)
    options = {"r": entry.rank, "lora_alpha": 2 * entry.rank, "target_modules": targets} | entry.more
    with _quiet():
        model = get_peft_model(copy.deepcopy(base), LoraConfig(task_type="CAUSAL_LM", **options))
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, values in model.named_parameters():
            if "lora_A" in name:
                values.copy_(torch.randn(values.shape, generator=draw) / values.shape[1] ** 0.5)
            elif "lora_B" in name:
                scale = up_scale / values.shape[1] ** 0.5
                values.copy_(torch.randn(values.shape, generator=draw) * scale)
            elif "lora_magnitude_vector" in name:  # the norms of the base's rows
                values.mul_(1 + MOST_STRETCH * torch.rand(values.shape, generator=draw))
            elif "modules_to_save" in name:
                values.add_(torch.randn(values.shape, generator=draw) * up_scale / values.shape[1] ** 0.5)
    with _quiet():
        model.save_pretrained(directory)
    return directory


def peft_logits(family: str, adapter: Path | None, texts: Sequence[list[int]]) -> Tensor:
    """What PEFT computes with the saved adapter, or transformers without one, [texts, tokens, vocab]."""
    model = random_model(family) if adapter is None else _peft_model(family, adapter)
    with torch.no_grad():
        logits: Tensor = model(torch.tensor(list(texts)), use_cache=False).logits
    return logits


def peft_hidden(family: str, adapter: Path, tokens: list[int]) -> Tensor:
    """The hidden states after the last norm, [tokens, hidden], of a family whose decoder is `model`."""
    decoder = _peft_model(family, adapter).base_model.model.model
    with torch.no_grad():
        hidden: Tensor = decoder(torch.tensor([tokens]), use_cache=False).last_hidden_state[0]
    return hidden


@cache
def _peft_model(family: str, adapter: Path) -> Any:
    return with_adapter(random_model(family), adapter)


def with_adapter(base: Any, adapter: Path) -> Any:
    """A copy of a model of transformers with a saved adapter."""
    from peft import PeftModel  # noqa: PLC0415 (slow to import)

    with _quiet():
        return PeftModel.from_pretrained(copy.deepcopy(base), str(adapter)).eval()


def greedy_tokens(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    """What a model of transformers, or of PEFT, goes on with; tokens that end a text do not end it."""
    found, given, cache = list[int](), torch.tensor([list(prompt)]), None
    with torch.no_grad():
        for _ in range(count):
            out = model(input_ids=given, past_key_values=cache, use_cache=True)
            cache, given = out.past_key_values, out.logits[:, -1:].argmax(-1)
            found.append(int(given))
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    """PEFT calls deprecated parts of transformers, and warns of what the tests want to have."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
