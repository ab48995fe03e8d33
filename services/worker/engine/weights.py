"""Reads tensors, or slices of them, from the safetensors files of a model directory.

Knows files, names, shapes and types; which slice a rank wants is decided in `layers.py`. Only the bytes of
the slices asked for are read, so a rank's `loaded_bytes` is about its share of the files.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from services.worker.engine.config import ModelError, read_json

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_TYPES = {"F32", "F16", "BF16"}
_WHOLE = slice(None)


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of a model, sorted by name; raises `ModelError` when there are none."""
    index = directory / INDEX
    if not index.exists():
        if not (directory / SINGLE).is_file():
            raise ModelError(f"{directory} holds neither {SINGLE} nor {INDEX}")
        return [directory / SINGLE]
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index}: `weight_map` must map tensor names to file names")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if Path(name).name != name or not (directory / name).is_file():
            raise ModelError(f"{index} names {name!r}, which is no file beside it")
    return [directory / name for name in names]


class Checkpoint:
    """Open weight files. `loaded_bytes` counts what was read, in the type it is stored in."""

    def __init__(self, directory: Path, files: dict[str, Any], paths: dict[str, Path]) -> None:
        self.directory = directory
        self.loaded_bytes = 0
        self._files = files
        self._paths = paths

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def read(
        self, name: str, shape: tuple[int, ...], rows: slice = _WHOLE, columns: slice = _WHOLE
    ) -> Tensor:
        """A tensor, or some of its rows or columns, in fp32.

        Args:
            name: As in the file.
            shape: The whole tensor's shape, as the config demands it.
            rows: Of the first dimension.
            columns: Of the second dimension.

        Raises:
            ModelError: the tensor is missing, or has another shape or a type that is not supported.
        """
        if name not in self._files:
            raise ModelError(f"{self.directory}: tensor {name} is in none of the weight files")
        view = self._files[name].get_slice(name)
        path, found = self._paths[name], tuple(view.get_shape())
        if found != shape:
            raise ModelError(f"{path}: tensor {name} has shape {found}, config.json demands {shape}")
        if view.get_dtype() not in _TYPES:
            raise ModelError(
                f"{path}: tensor {name} has type {view.get_dtype()}, supported: {', '.join(sorted(_TYPES))}"
            )
        try:
            stored: Tensor = view[rows] if len(shape) == 1 else view[rows, columns]
        except SafetensorError as error:
            raise ModelError(f"{path}: tensor {name} cannot be read: {error}") from error
        self.loaded_bytes += stored.numel() * stored.element_size()
        # a copy, so that nothing refers to the mapped file once it is closed
        return stored.to(torch.float32, copy=True)


@contextmanager
def open_checkpoint(directory: Path) -> Iterator[Checkpoint]:
    """Opens all weight files of a directory; raises `ModelError` when one is missing or damaged."""
    files: dict[str, Any] = {}
    paths: dict[str, Path] = {}
    with ExitStack() as stack:
        for path in weight_files(directory):
            try:
                opened = stack.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise ModelError(
                    f"{path} is no complete safetensors file ({error}); download or convert it again"
                ) from error
            for name in opened.keys():  # noqa: SIM118 (not a dict)
                files[name], paths[name] = opened, path
        yield Checkpoint(directory, files, paths)
