"""Reads the metadata and the table of tensors of a GGUF file; everything is checked before it is believed.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. A file that is split into parts is read
as one, from its first part. `gguf/config.py` says what the metadata mean; the engine reads the tensors.
"""

import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from services.worker.gguf.header_bytes import BadGguf, HeaderBytes, damaged

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MOST_KEYS = 2**14
MOST_TENSORS = 2**17
MOST_DIMENSIONS = 4
MOST_PARTS = 1024
LONGEST_KEY = 1024  # bytes
LONGEST_NAME = 512  # bytes; llama.cpp allows 63
LARGEST_ALIGNMENT = 2**16
_DEFAULT_ALIGNMENT = 32
_VOCABULARY = "tokenizer."
_PART = re.compile(r"(.*-)(\d{5})-of-(\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor in a file.

    Attributes:
        path: Of the file; a model may be split over several.
        shape: Its dimensions, the slowest first: a matrix is [out, in].
        begin: Its first byte in the file; rows follow each other.
        end: The byte after its last.
    """

    path: Path
    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """The metadata and tensors of a model.

    Attributes:
        architecture: `general.architecture`.
        metadata: By key: a truth value, number or text, or a list of one of these.
        tensors: By the file's names.
    """

    path: Path
    architecture: str
    metadata: Mapping[str, Any]
    tensors: dict[str, GgufTensor] = field(default_factory=dict)


def is_gguf(path: Path) -> bool:
    """Whether a path means a GGUF file: all that is no directory does, and a missing one by its name."""
    return not path.is_dir() and (path.exists() or path.suffix.lower() == ".gguf")


def read_gguf(path: Path, *, vocabulary: bool = True) -> GgufFile:
    """Reads a model's file, with its further parts if it is split.

    Args:
        path: Of the file, or of the first part.
        vocabulary: False passes over the tokenizer's lists, which are most of the metadata.

    Raises:
        BadGguf: The file is missing, damaged or hostile, or of a kind that is not supported.
    """
    metadata, tensors = _read_part(path, vocabulary)
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise damaged(path, "`general.architecture` is missing")
    parts = metadata.get("split.count", 1)
    if type(parts) is not int or not 0 <= parts <= MOST_PARTS:
        raise damaged(path, f"`split.count` is no number from 0 to {MOST_PARTS}")
    for number in range(1, parts):
        for tensor in _further_part(path, number, parts):
            if tensor.name in tensors:
                raise damaged(
                    tensor.path, f"tensor {tensor.name} is in {tensors[tensor.name].path.name} as well"
                )
            tensors[tensor.name] = tensor
    return GgufFile(path, architecture, metadata, tensors)


def _further_part(first: Path, number: int, parts: int) -> Iterable[GgufTensor]:
    """The tensors of one more part, counted from 0; the parts' names give their number."""
    match = _PART.fullmatch(first.name)
    if match is None or int(match[2]) != 1 or int(match[3]) != parts:
        raise BadGguf(
            f"{first} is one of {parts} parts of a model; give the first one, and keep the names of all "
            f"parts as they were (NAME-00001-of-{parts:05d}.gguf)"
        )
    path = first.with_name(f"{match[1]}{number + 1:05d}-of-{match[3]}.gguf")
    metadata, tensors = _read_part(path, vocabulary=False)
    if metadata.get("split.count") != parts or metadata.get("split.no") != number:
        raise damaged(path, f"it does not say that it is part {number + 1} of {parts}")
    return tensors.values()


def _read_part(path: Path, vocabulary: bool) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
    try:
        # a pipe without a writer would block
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise BadGguf(f"{path} is no regular file; give a GGUF file")
            return _read_header(HeaderBytes(path, file, found.st_size), vocabulary)
    except FileNotFoundError:
        raise BadGguf(f"{path} does not exist; check the model's path") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        reason = error.strerror if isinstance(error, OSError) else None
        raise BadGguf(f"{path} cannot be read: {reason or error}; check the model's path") from error


def _read_header(header: HeaderBytes, vocabulary: bool) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
    path = header.path
    if header.size < len(MAGIC) or header.raw(len(MAGIC), "the file's kind") != MAGIC:
        raise BadGguf(f"{path} is no GGUF file: it does not begin with GGUF; give a GGUF file or a directory")
    version = header.uint32("the version")
    if version and not version & 0xFFFF:
        raise BadGguf(
            f"{path} is a big-endian GGUF file, which is not supported; convert it with `gguf-convert-endian`"
        )
    if version not in VERSIONS:
        raise BadGguf(
            f"{path} is a GGUF file of version {version}, supported are 2 and 3; convert the model again"
        )
    num_tensors, num_keys = header.uint64("the number of tensors"), header.uint64("the number of keys")
    for count, most, what in ((num_tensors, MOST_TENSORS, "tensors"), (num_keys, MOST_KEYS, "keys")):
        if count > most:
            raise damaged(path, f"it claims {count} {what}, {most} are the limit")
    metadata: dict[str, Any] = {}
    for _ in range(num_keys):
        key = header.name(LONGEST_KEY, "a key")
        if key in metadata:
            raise damaged(path, f"the key {key[:80]!r} is given twice")
        keep = vocabulary or not key.startswith(_VOCABULARY)
        metadata[key] = _value(header, f"the value of {key[:80]!r}", keep)
    return metadata, _tensors(header, num_tensors, _alignment(path, metadata))


def _value(header: HeaderBytes, what: str, keep: bool) -> Any:
    """The value of a key; of a list that is not to be kept, an empty one."""
    kind = _value_type(header, what)
    if kind != GGUFValueType.ARRAY:
        return header.values(kind, 1, what)[0]
    kind, count = _value_type(header, what), header.uint64(f"the length of {what}")
    if kind == GGUFValueType.ARRAY:
        raise BadGguf(
            f"{header.path}: {what} is an array of arrays, which is not supported; convert the model again"
        )
    if keep:
        return header.values(kind, count, what)
    header.skip_values(kind, count, what)
    return []


def _value_type(header: HeaderBytes, what: str) -> GGUFValueType:
    number = header.uint32(f"the type of {what}")
    try:
        return GGUFValueType(number)
    except ValueError:
        raise damaged(header.path, f"{what} has the unknown type {number}") from None


def _alignment(path: Path, metadata: Mapping[str, Any]) -> int:
    """Of the tensors' data, in bytes."""
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 8 <= alignment <= LARGEST_ALIGNMENT or alignment & (alignment - 1):
        raise damaged(path, f"`general.alignment` is no power of two from 8 to {LARGEST_ALIGNMENT}")
    return alignment


def _tensors(header: HeaderBytes, count: int, alignment: int) -> dict[str, GgufTensor]:
    """The table of tensors, which is followed by the data."""
    entries: dict[str, tuple[GGMLQuantizationType, tuple[int, ...], int, int]] = {}
    for _ in range(count):
        name = header.name(LONGEST_NAME, "a tensor's name")
        if name in entries:
            raise damaged(header.path, f"the tensor {name[:80]!r} is given twice")
        entries[name] = _entry(header, f"tensor {name[:80]!r}", alignment)
    data = -(-header.position // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    previous = ("", data)
    for name, (kind, shape, offset, length) in sorted(entries.items(), key=lambda entry: entry[1][2]):
        begin, end = data + offset, data + offset + length
        if begin < previous[1]:
            raise damaged(header.path, f"the tensors {previous[0][:80]!r} and {name[:80]!r} share bytes")
        if end > header.size:
            raise damaged(
                header.path, f"tensor {name[:80]!r} would end at byte {end}, the file has {header.size}"
            )
        tensors[name] = GgufTensor(header.path, name, kind, shape, begin, end)
        previous = (name, end)
    return tensors


def _entry(
    header: HeaderBytes, what: str, alignment: int
) -> tuple[GGMLQuantizationType, tuple[int, ...], int, int]:
    """A tensor's type, shape, offset into the data, and length in bytes."""
    path, num_dimensions = header.path, header.uint32(f"the dimensions of {what}")
    if not 1 <= num_dimensions <= MOST_DIMENSIONS:
        raise damaged(path, f"{what} has {num_dimensions} dimensions")
    shape = tuple(header.uint64(f"the shape of {what}") for _ in range(num_dimensions))[::-1]
    number = header.uint32(f"the type of {what}")
    try:
        kind = GGMLQuantizationType(number)
        block, block_bytes = GGML_QUANT_SIZES[kind]
    except (KeyError, ValueError):
        raise BadGguf(
            f"{path}: {what} has the unknown type {number}; convert the model to a common type, such as Q8_0"
        ) from None
    if not all(shape) or prod(shape) >= 2**63:
        raise damaged(path, f"{what} has the shape {list(shape)}")
    if shape[-1] % block:
        raise damaged(path, f"{what} has rows of {shape[-1]} values, {kind.name} stores {block} together")
    offset = header.uint64(f"the place of {what}")
    if offset % alignment:
        raise damaged(path, f"{what} begins at {offset}, which is no multiple of {alignment}")
    return kind, shape, offset, prod(shape) // block * block_bytes
