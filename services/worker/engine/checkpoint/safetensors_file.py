"""Finds the safetensors files of a model and reads their headers: types, shapes and offsets of tensors.

The format: 8 bytes length, little endian; that many bytes of JSON; the data. The header is checked against
the file's size before any data is used; `slice_reader.py` reads the data.
"""

import json
import os
import struct
from math import prod
from pathlib import Path
from typing import Any

from services.worker.engine.checkpoint.stored_tensor import ITEM_BYTES, StoredTensor
from services.worker.engine.config.json_fields import ModelError, read_json
from services.worker.model_files.json_files import MAX_INDEX_BYTES, shown

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
LONGEST_HEADER = 32 * 2**20  # bytes, a third of the format's own limit; 100 thousand tensors take half of it
MOST_DIMENSIONS = 8
LONGEST_NAME = 512


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of a model directory, sorted by name.

    Raises:
        ModelError: There are none, or the index names one that is missing.
    """
    index = directory / INDEX
    if not index.exists():
        if not (directory / SINGLE).is_file():
            raise ModelError(f"{directory} holds neither {SINGLE} nor {INDEX}")
        return [directory / SINGLE]
    weight_map = read_json(index, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index}: `weight_map` must map tensor names to file names")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if Path(name).name != name or not (directory / name).is_file():
            raise ModelError(f"{index} names {shown(name)}, which is no file beside it")
    return [directory / name for name in names]


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a file by name.

    Raises:
        ModelError: The file is damaged or contradicts itself.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
            if length > size - 8:
                raise _damaged(path, f"a header of {length} bytes does not fit into its {size} bytes")
            if length > LONGEST_HEADER:
                raise ModelError(f"{path} has a header of {length} bytes, {LONGEST_HEADER} are the limit")
            header = json.loads(file.read(length), object_pairs_hook=_unique)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"its header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise _damaged(path, "its header is no JSON object")
    header.pop("__metadata__", None)
    tensors = {name: _stored(path, name, entry, 8 + length, size) for name, entry in header.items()}
    previous = ("", 8 + length)
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor.begin < previous[1]:
            raise _damaged(path, f"the tensors {previous[0]} and {name} share bytes")
        previous = (name, tensor.end)
    return tensors


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{shown(next(name for name in names if names.count(name) > 1))} is in it twice")
    return table


def _stored(path: Path, name: str, entry: Any, data: int, size: int) -> StoredTensor:
    if len(name) > LONGEST_NAME:
        raise _damaged(path, f"a tensor has a name of {len(name)} characters")
    try:
        kind, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise _damaged(path, f"tensor {name} has no proper dtype, shape and data_offsets") from None
    numbers = [*shape, begin, end]
    if len(shape) > MOST_DIMENSIONS:
        raise _damaged(path, f"tensor {name} has {len(shape)} dimensions")
    if (
        not isinstance(kind, str)
        or any(type(n) is not int or not 0 <= n < 2**63 for n in numbers)
        or begin > end
    ):
        raise _damaged(path, f"tensor {name} has no proper dtype, shape and data_offsets")
    if data + end > size:
        raise _damaged(path, f"tensor {name} would end at byte {data + end}, the file has {size}")
    if kind in ITEM_BYTES and prod(shape) * ITEM_BYTES[kind] != end - begin:
        raise _damaged(
            path, f"tensor {name} is {kind} {list(shape)}, but the header gives it {end - begin} bytes"
        )
    return StoredTensor(path, kind, shape, data + begin, data + end)


def _damaged(path: Path, reason: str) -> ModelError:
    return ModelError(f"{path} is no complete safetensors file ({reason}); download or convert it again")
