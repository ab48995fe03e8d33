"""Finds the base of a training: a Hugging Face directory, or a GGUF file, of which one is made."""

import json
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cli.console import fail
from cli.models.catalogue import DEMO, CatalogueModel
from cli.models.convert.gguf_to_hf import GgufToHf
from cli.models.names import HubName
from cli.models.resolve import meant_by, resolve_model
from cli.models.store import require_space
from cli.models.transfer_bar import transfer_bar

_FLOATS, _SOURCE = ".base", "ryz-source.json"


@dataclass(frozen=True, slots=True)
class Base:
    """A base.

    Attributes:
        path: What was named: a directory, or a GGUF file.
        name: How the adapter's files name it: a repository of the Hub, a name of the catalogue, or a path.
        served_as: The name under which a stack serves it by default.
    """

    path: Path
    name: str
    served_as: str

    @property
    def is_directory(self) -> bool:
        """Return whether it is in Hugging Face form."""
        return self.path.is_dir()


def find_base(given: str) -> Base:
    """Find a model by name or path; fail if there is none."""
    path = resolve_model(given, pull=False)
    meant = path if given == DEMO else meant_by(given)
    if isinstance(meant, HubName):
        return Base(path, given.removeprefix("hf:"), path.stem if path.is_file() else path.name)
    if isinstance(meant, CatalogueModel) or given == DEMO:
        return Base(path, given, given)
    return Base(path, str(path), path.name if path.is_dir() else re.sub(r"\.gguf$", "", path.name))


def float_directory(base: Base, output: Path, base_bits: int) -> tuple[Path, str]:
    """Return the base as a directory of floats, and a sentence about its form.

    A GGUF file is written to the output once, and is there until the training ends.
    """
    if base.is_directory:
        config = json.loads((base.path / "config.json").read_text())
        kind = config.get("dtype") or config.get("torch_dtype") or "float32"
        return (
            base.path,
            f"base: {base.path}, in Hugging Face form ({kind}), computed with {_bits(base_bits)}",
        )
    from gguf import GGMLQuantizationType  # noqa: PLC0415 (keeps `ryz --help` quick)

    from services.worker.gguf.gguf_file import read_gguf  # noqa: PLC0415

    file = read_gguf(base.path, vocabulary=False)
    matrices = [one for one in file.tensors.values() if len(one.shape) > 1]
    types = ", ".join(sorted({one.type.name for one in matrices}))
    kind = GGMLQuantizationType.F32 if base_bits == 32 else GGMLQuantizationType.BF16
    how = f"dequantized to {kind.name}, computed with {_bits(base_bits)}"
    described = f"base: the GGUF file {base.path} ({types}), {how}"
    floats, found = output / _FLOATS, base.path.stat()
    source = json.dumps([str(base.path.resolve()), found.st_size, found.st_mtime_ns, kind.name])
    if (floats / _SOURCE).is_file() and (floats / _SOURCE).read_text() == source:
        return floats, described
    remove_floats(output)
    draft = output / f"{_FLOATS}.part"
    try:
        draft.mkdir(parents=True)
        work = GgufToHf(base.path, kind)
        require_space(draft, work.needed)
        with transfer_bar(f"{base.path.name} as {kind.name}", work.total) as bar:
            work.write(draft, bar.advance_to)
        (draft / _SOURCE).write_text(source)
        draft.rename(floats)
    except OSError as error:
        fail(f"{draft} cannot be written: {error.strerror or error}.")
    return floats, described


def remove_floats(output: Path) -> None:
    """Remove the floats of a GGUF file, and the output if nothing else is in it."""
    for name in (_FLOATS, f"{_FLOATS}.part"):
        shutil.rmtree(output / name, ignore_errors=True)
    with suppress(OSError):
        output.rmdir()


def _bits(base_bits: int) -> str:
    return "codes of 4 bits (NF4)" if base_bits == 4 else f"{base_bits}-bit weights"
