"""Writes the shape and the weights of a Hugging Face directory as a GGUF file; other keys are given to it."""

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from gguf import GGML_QUANT_VERSION, GGMLQuantizationType, GGUFWriter, LlamaFileType
from numpy.typing import NDArray

from cli.models.convert.gguf_model_keys import ARCHITECTURES, chosen_names, frequency_divisors, model_keys
from cli.models.convert.gguf_rope_keys import rope_of
from cli.models.convert.relayout import TargetTensor, relayout
from cli.models.convert.same_model import require_same
from cli.models.convert.tensor_stream import fits, num_bytes, to_kind
from services.worker.engine.checkpoint.names.gguf_names import gguf_names
from services.worker.engine.checkpoint.tensor_table import TensorTable, stored_tensors
from services.worker.engine.config.json_fields import read_json
from services.worker.engine.config.read_config import read_config
from services.worker.gguf.config import ARCHITECTURES as STORED
from services.worker.gguf.header_bytes import BadGguf
from services.worker.gguf.rope_keys import FACTORS, FREQUENCY_DIVISORS

F32, F16 = GGMLQuantizationType.F32, GGMLQuantizationType.F16
# as in all files of llama.cpp, beside what is no matrix
_ALWAYS_F32 = ("norm.weight", ".bias", "_inp.weight", "_inp_shexp.weight", "position_embd.weight")
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")


class GgufModel:
    """A model that has been checked as far as its config and the headers of its files go.

    Args:
        kind: Type of the matrices; None: as they are.

    Raises:
        BadGguf: Something in the model cannot be said in a GGUF file.
        ModelError: The model cannot be served by this program.
    """

    def __init__(self, source: Path, kind: GGMLQuantizationType | None) -> None:
        self._source, self._kind = source, kind
        self.config = config = read_config(source)
        architecture = ARCHITECTURES.get(config.architecture)
        if architecture is None:
            raise BadGguf(f"{source}: models of {config.architecture} are served, but not converted")
        self._architecture = architecture
        fields = read_json(source / "config.json")
        positions = next((fields[name] for name in _POSITIONS if fields.get(name)), config.context_length)
        self._keys = model_keys(config, architecture, int(positions))
        self._lists = self._factors(fields)
        located = TensorTable(source, stored_tensors(source)).locate(config)
        views = gguf_names(STORED[architecture]).views(config, chosen_names(config, architecture))
        self._tensors = relayout(located, views, config.final_norm.offset)
        self._require_same()

    @property
    def total(self) -> int:
        """Return the bytes that are read."""
        return sum(tensor.num_bytes for tensor in self._tensors)

    @property
    def needed(self) -> int:
        """Return the bytes that the weights will take."""
        return sum(num_bytes(tensor.shape, self._kind_of(tensor)) for tensor in self._tensors)

    def write(self, target: Path, keys: dict[str, Any], progress: Callable[[int], None]) -> None:
        """Write the file.

        Args:
            progress: Called with the bytes that have been read so far.
        """
        writer = self._begin(target, keys)
        try:
            done = 0
            for tensor in self._tensors:
                writer.write_tensor_data(to_kind(tensor.read(), tensor.kind, self._kind_of(tensor)))
                done += tensor.num_bytes
                progress(done)
            writer.flush()
        finally:
            writer.close()

    def _begin(self, target: Path, keys: dict[str, Any]) -> GGUFWriter:
        """Write all that precedes the weights."""
        writer = GGUFWriter(target, self._architecture)
        try:
            writer.add_name(self._source.resolve().name)
            kinds = [self._kind_of(tensor) for tensor in self._tensors if len(tensor.shape) >= 2]
            writer.add_file_type(_file_type(max(set(kinds), key=kinds.count)))
            writer.add_quantization_version(GGML_QUANT_VERSION)
            for key, value in (self._keys | keys).items():
                _add(writer, key, value)
            for name, numbers in self._lists.items():
                writer.add_tensor_info(name, numbers.shape, numbers.dtype, numbers.nbytes)
            for tensor in self._tensors:
                kind = self._kind_of(tensor)
                size = num_bytes(tensor.shape, kind)
                rows = int(np.prod(tensor.shape[:-1], dtype=np.int64))
                shape = (*tensor.shape[:-1], size // rows)
                writer.add_tensor_info(tensor.name, shape, np.dtype(np.uint8), size, kind)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for numbers in self._lists.values():
                writer.write_tensor_data(numbers)
        except BaseException:
            writer.close()
            raise
        return writer

    def _require_same(self) -> None:
        with TemporaryDirectory(prefix="ryz-convert-") as directory:
            path = Path(directory) / "model.gguf"
            writer = self._begin(path, {})
            writer.flush()
            writer.close()
            alignment = writer.data_alignment * len(self._tensors)
            os.truncate(path, path.stat().st_size + self.needed + alignment)  # takes no room on the disk
            require_same(self._source, self.config, path, self._architecture)

    def _factors(self, fields: dict[str, Any]) -> dict[str, NDArray[np.float32]]:
        """Return the lists of numbers of the rotary embedding that files have as tensors."""
        rope = rope_of(self.config)
        divisors = frequency_divisors(rope)
        if divisors is not None:
            return {FREQUENCY_DIVISORS: divisors}
        if rope is None or rope.kind != "longrope":
            return {}
        scaling = fields.get("rope_scaling") or fields["rope_parameters"]
        names = zip(FACTORS, ("short_factor", "long_factor"), strict=True)
        return {name: np.array(scaling[key], np.float32) for name, key in names}

    def _kind_of(self, tensor: TargetTensor) -> GGMLQuantizationType:
        if len(tensor.shape) < 2 or tensor.name.endswith(_ALWAYS_F32):
            return F32
        kind = self._kind or tensor.kind
        return kind if fits(tensor.shape, kind) else F16


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _file_type(kind: GGMLQuantizationType) -> int:
    """Return the number by which llama.cpp calls files whose matrices have that type."""
    names = {"F32": "ALL_F32"}
    name = names.get(kind.name, f"MOSTLY_{kind.name}")
    return int(LlamaFileType[name]) if name in LlamaFileType.__members__ else int(LlamaFileType.GUESSED)
