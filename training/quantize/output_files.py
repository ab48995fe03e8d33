"""The directory that is written: a file for each layer as it is done, then the rest, the index and the texts.

A layer's file is complete when it has its name, so an interrupted run goes on after the last one.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from services.worker.engine.checkpoint.safetensors_file import INDEX
from services.worker.engine.config.json_fields import ModelError
from training.quantize.bit_plan import Key

_PLAN, _BITS, _REST = "quantize.json", "bits.json", "rest.safetensors"
_TEXTS = (
    "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "tokenizer.model", "chat_template.jinja", "chat_template.json", "vocab.json", "merges.txt",
    "added_tokens.json",
)  # fmt: skip


class OutputFiles:
    """The files of one quantization.

    Args:
        directory: Where they are written; it is made if it is not there.
        plan: All that decides what is written; a run goes on only with the same.

    Raises:
        ModelError: The directory has parts of another plan.
    """

    def __init__(self, directory: Path, plan: Mapping[str, Any]) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        path, text = directory / _PLAN, json.dumps(plan, indent=1, sort_keys=True)
        if path.exists() and path.read_text(encoding="utf-8") != text:
            raise ModelError(
                f"{directory} has parts of a quantization with other options: remove it, or ask for the "
                "same again"
            )
        _write_text(path, text)

    def bits(self) -> dict[Key, int] | None:
        """Return the bits of each unit that were chosen; None if they were not yet."""
        path = self._directory / _BITS
        if not path.exists():
            return None
        rows = json.loads(path.read_text(encoding="utf-8"))
        return {(int(index), str(unit)): int(bits) for index, unit, bits in rows}

    def write_bits(self, bits: Mapping[Key, int]) -> None:
        """Keep the bits of each unit, so that a run that goes on need not measure again."""
        rows = [[index, unit, count] for (index, unit), count in sorted(bits.items())]
        _write_text(self._directory / _BITS, json.dumps(rows))

    def layer(self, index: int) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the tensors of a layer that is done, and what was reported of it; None if it is not."""
        path = self._layer_path(index)
        if not path.exists():
            return None
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
            facts = json.loads(file.metadata()["facts"])
        return tensors, facts

    def write_layer(self, index: int, tensors: dict[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Write a layer's tensors and what is reported of it, in one step."""
        _save(tensors, self._layer_path(index), {"facts": json.dumps(facts)})

    def finish(self, source: Path, rest: dict[str, Tensor], config: Mapping[str, Any], layers: int) -> None:
        """Write what is left, after all layers.

        Args:
            source: The model's directory, whose texts are copied.
            rest: All tensors that no layer's file has.
            config: Of `config.json`.
            layers: How many layers' files there are.
        """
        _save(rest, self._directory / _REST, {})
        weight_map = dict.fromkeys(rest, _REST)
        total = 0
        for path in [self._layer_path(index) for index in range(layers)] + [self._directory / _REST]:
            with safe_open(path, framework="pt") as file:
                weight_map |= dict.fromkeys(file.keys(), path.name)
            total += path.stat().st_size
        for name in _TEXTS:
            if (source / name).is_file():
                shutil.copyfile(source / name, self._directory / name)
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        _write_text(self._directory / INDEX, json.dumps(index, indent=1))
        (self._directory / _BITS).unlink(missing_ok=True)
        # last, because a directory with a config is a model
        _write_text(self._directory / "config.json", json.dumps(config, indent=2) + "\n")

    def _layer_path(self, index: int) -> Path:
        return self._directory / f"layer-{index:05}.safetensors"


def _save(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    draft = path.with_name(f".{path.name}.part")
    save_file({name: one.contiguous() for name, one in tensors.items()}, draft, {"format": "pt", **metadata})
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    # safetensors makes files that only their owner may read
    draft.chmod((path.parent / _PLAN).stat().st_mode & 0o666)
    draft.replace(path)


def _write_text(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.part")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def as_stored(values: Tensor, kind: str) -> Tensor:
    """Return fp32 values in the type that a file's header calls so; F32 for a type that is no float."""
    return values.to({"F16": torch.float16, "BF16": torch.bfloat16}.get(kind, torch.float32))
