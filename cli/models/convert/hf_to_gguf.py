"""Writes a Hugging Face directory as a GGUF file, quantized by the `gguf` package where that is asked for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import (
    GGML_QUANT_VERSION,
    MODEL_ARCH,
    MODEL_ARCH_NAMES,
    GGMLQuantizationType,
    GGUFWriter,
    LlamaFileType,
    get_tensor_name_map,
)

from cli.models.convert.gguf_model_keys import ARCHITECTURES, frequency_divisors, model_keys
from cli.models.convert.gguf_tokenizer_keys import tokenizer_keys
from cli.models.convert.stacked_experts import StackedTensor, stack_experts
from cli.models.convert.tensor_stream import (
    SourceTensor,
    fits,
    num_bytes,
    order_rows,
    to_kind,
)
from services.worker.engine.checkpoint.tensor_table import stored_tensors
from services.worker.engine.config.read_config import read_config
from services.worker.gguf.gguf_config import ARCHITECTURES as STORED
from services.worker.gguf.header_bytes import BadGguf
from services.worker.json_files import BadFile, read_object

F32, F16 = GGMLQuantizationType.F32, GGMLQuantizationType.F16
_FLOATS = {"F32", "F16", "BF16"}
_COMPUTED = ("rotary_emb.inv_freq",)  # tensors that old files have and that follow from the config
_ROUTERS = ("block_sparse_moe.gate.weight", "mlp.gate.weight")  # F32, as in all files of llama.cpp
_PAIRED = ("self_attn.q_proj", "self_attn.k_proj")


class HfToGguf:
    """A conversion that has been checked as far as config, tokenizer and headers go.

    Args:
        source: The directory.
        kind: Type of the matrices; None: as they are. What is no matrix is F32, as in all GGUF files. A
            matrix whose rows are no whole blocks of that type is F16.

    Raises:
        BadGguf: Something in the model cannot be said in a GGUF file.
        ModelError: The model cannot be served by this program.
    """

    def __init__(self, source: Path, kind: GGMLQuantizationType | None) -> None:
        self._source, self._kind = source, kind
        self._config = read_config(source)
        known = ARCHITECTURES.get(self._config.architecture)
        if known is None:
            raise BadGguf(f"{source}: models of {self._config.architecture} are served, but not converted")
        self._architecture = known
        self._pairs = STORED[self._architecture].interleaved_heads
        texts = _texts(source)
        self._keys = model_keys(source, self._config) | tokenizer_keys(source, self._config.vocab_size, texts)
        self._divisors = frequency_divisors(self._config)
        self._tensors = self._sources()
        self._names = self._stored_names()

    @property
    def total(self) -> int:
        """Return the bytes that are read."""
        return sum(tensor.num_bytes for tensor in self._tensors)

    @property
    def needed(self) -> int:
        """Return the bytes that the weights will take."""
        return sum(num_bytes(tensor.shape, self._kind_of(tensor)) for tensor in self._tensors)

    def write(self, target: Path, reach: Callable[[int], None]) -> None:
        """Write the file.

        Args:
            target: The file.
            reach: Called with the bytes that have been read so far.
        """
        writer = GGUFWriter(target, self._architecture)
        try:
            self._add_keys(writer)
            if self._divisors is not None:
                writer.add_tensor_info(
                    "rope_freqs.weight", self._divisors.shape, np.dtype(np.float32), self._divisors.nbytes
                )
            for tensor in self._tensors:
                kind = self._kind_of(tensor)
                size = num_bytes(tensor.shape, kind)
                dimensions = (
                    *tensor.shape[:-1],
                    size // max(1, int(np.prod(tensor.shape[:-1], dtype=np.int64))),
                )
                writer.add_tensor_info(self._names[tensor.name], dimensions, np.dtype(np.uint8), size, kind)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            if self._divisors is not None:
                writer.write_tensor_data(self._divisors)
            done = 0
            for tensor in self._tensors:
                rows = tensor.read()
                if isinstance(tensor, SourceTensor) and self._pairs and _is_paired(tensor):
                    rows = order_rows(tensor, rows, self._config.head_dim, paired=True)
                writer.write_tensor_data(to_kind(rows, tensor.kind, self._kind_of(tensor)))
                done += tensor.num_bytes
                reach(done)
            writer.flush()
        finally:
            writer.close()

    def _sources(self) -> list[SourceTensor | StackedTensor]:
        found = list[SourceTensor]()
        for name, stored in stored_tensors(self._source).items():
            if name.endswith(_COMPUTED) or (name == "lm_head.weight" and self._config.tied_embeddings):
                continue
            if stored.kind not in _FLOATS:
                raise BadGguf(
                    f"{stored.path}: tensor {name} has the type {stored.kind}, which is not converted"
                )
            kind = GGMLQuantizationType[stored.kind]
            found.append(SourceTensor(name, kind, stored.shape, stored.path, stored.begin, stored.end))
        return stack_experts(found)

    def _stored_names(self) -> dict[str, str]:
        kind = next(kind for kind, name in MODEL_ARCH_NAMES.items() if name == self._architecture)
        table = get_tensor_name_map(MODEL_ARCH(kind), self._config.num_layers)
        names = dict[str, str]()
        for tensor in self._tensors:
            name = table.get_name(tensor.name, try_suffixes=(".weight", ".bias"))
            if name is None:
                raise BadGguf(
                    f"{self._source}: tensor {tensor.name} has no name in GGUF files of {self._architecture}"
                )
            names[tensor.name] = name
        return names

    def _kind_of(self, tensor: SourceTensor | StackedTensor) -> GGMLQuantizationType:
        if len(tensor.shape) < 2 or tensor.name.endswith(_ROUTERS):
            return F32
        kind = self._kind or tensor.kind
        return kind if fits(tensor.shape, kind) else F16

    def _add_keys(self, writer: GGUFWriter) -> None:
        writer.add_name(self._source.resolve().name)
        kinds = [self._kind_of(tensor) for tensor in self._tensors if len(tensor.shape) >= 2]
        common = max(set(kinds), key=kinds.count)
        writer.add_file_type(_file_type(common))
        writer.add_quantization_version(GGML_QUANT_VERSION)
        for key, value in self._keys.items():
            _add(writer, key, value)


def _is_paired(tensor: SourceTensor) -> bool:
    return tensor.name.rpartition(".")[0].endswith(_PAIRED)


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


def _texts(source: Path) -> dict[str, Any]:
    """Return `tokenizer_config.json`, with the chat template that may be in a file of its own."""
    path, template = source / "tokenizer_config.json", source / "chat_template.jinja"
    try:
        found = read_object(path) if path.exists() else {}
        if template.is_file():
            found["chat_template"] = template.read_text()
    except (OSError, BadFile, ValueError) as error:
        raise BadGguf(f"{path} cannot be read: {error}") from error
    return found
