"""Writes a GGUF file as a Hugging Face directory: weights as safetensors, config, tokenizer and template."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType

from cli.models.convert.relayout import TargetTensor, relayout
from cli.models.convert.tensor_stream import num_bytes, sync, to_kind
from services.worker.engine.checkpoint.tensor_table import TensorTable, stored_tensors
from services.worker.engine.config.families.registry import family_of
from services.worker.engine.config.json_fields import JsonFields
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.read_config import read_config
from services.worker.gguf.config import hf_config
from services.worker.gguf.gguf_file import GgufFile, read_gguf
from services.worker.text.end_tokens import turn_end
from services.worker.text.from_gguf.gguf_template import MAX_NAMED, gguf_template
from services.worker.text.from_gguf.gguf_tokenizer import gguf_tokenizer
from services.worker.text.from_gguf.tokenizer_keys import TokenizerKeys
from services.worker.text.from_gguf.vocabulary import read_vocabulary

DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class GgufToHf:
    """A conversion that has been checked as far as the file's header goes.

    Args:
        kind: Type of all weights; None: floats as they are, and quantized ones as F32, which loses nothing.

    Raises:
        BadGguf: The file cannot be read.
        ModelError: The model is not one that is supported.
    """

    def __init__(self, source: Path, kind: GGMLQuantizationType | None) -> None:
        config = read_config(source)
        self._file: GgufFile = read_gguf(source)
        self._kind = kind
        self._config = hf_config(self._file)
        family = family_of(config.architecture)
        assert family is not None  # read_config has accepted it
        located = TensorTable(source, stored_tensors(source)).locate(config)
        stored = family.read(JsonFields(source, self._config))  # with norms as directories have them
        views = family.names.views(stored, _chosen_names(stored))
        self._tensors = relayout(located, views, -stored.final_norm.offset)
        self._context_length = config.context_length

    @property
    def total(self) -> int:
        """Return the bytes that are read."""
        return sum(tensor.num_bytes for tensor in self._tensors)

    @property
    def needed(self) -> int:
        """Return the bytes that the weights will take."""
        return sum(num_bytes(tensor.shape, self._kind_of(tensor)) for tensor in self._tensors)

    def write(self, target: Path, progress: Callable[[int], None]) -> None:
        """Write the directory, which exists and is empty.

        Args:
            progress: Called with the bytes that have been read so far.
        """
        self._write_texts(target)
        path = target / "model.safetensors"
        with path.open("xb") as file:
            file.write(self._header())
            done = 0
            for tensor in self._tensors:
                to_kind(tensor.read(), tensor.kind, self._kind_of(tensor)).tofile(file)
                done += tensor.num_bytes
                progress(done)
        sync(path)

    def _kind_of(self, tensor: TargetTensor) -> GGMLQuantizationType:
        return tensor.kind if self._kind is None else self._kind

    def _header(self) -> bytes:
        """Return the head of the safetensors file: https://huggingface.co/docs/safetensors, "Format"."""
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        begin = 0
        for tensor in self._tensors:
            kind = self._kind_of(tensor)
            end = begin + num_bytes(tensor.shape, kind)
            header[tensor.name] = {
                "dtype": kind.name,
                "shape": list(tensor.shape),
                "data_offsets": [begin, end],
            }
            begin = end
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        return struct.pack("<Q", len(text)) + text

    def _write_texts(self, target: Path) -> None:
        keys = TokenizerKeys(self._file.path, self._file.metadata)
        vocabulary = read_vocabulary(keys)
        template, roles = gguf_template(keys, vocabulary), vocabulary.roles
        last = turn_end(template, vocabulary.control_texts) if template else None
        ends = {one for one in (roles.eos, *roles.ends, last) if one is not None}
        eos = last if last is not None else roles.eos
        ids = {"bos_token_id": roles.bos, "eos_token_id": eos, "pad_token_id": roles.padding}
        given = {key: value for key, value in ids.items() if value is not None}
        kinds = {self._kind_of(tensor).name for tensor in self._tensors if len(tensor.shape) == 2}
        dtype = DTYPES[kinds.pop() if len(kinds) == 1 else "F32"]
        config = {key: _short(value) for key, value in self._config.items()}
        # null for what there is not, because defaults of families are ids of larger vocabularies
        _write(target / "config.json", config | ids | {"torch_dtype": dtype})
        _write(target / "generation_config.json", given | {"eos_token_id": sorted(ends)})
        texts = {
            "bos_token": vocabulary.text(roles.bos),
            "eos_token": vocabulary.text(eos),
            "unk_token": vocabulary.text(roles.unknown),
            "pad_token": vocabulary.text(roles.padding),
        }
        tokenizer_config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "model_max_length": self._context_length,
            **{key: text for key, text in texts.items() if text},
        }
        named = keys.named_texts("chat_template", MAX_NAMED)
        if source := keys.text("chat_template") or named.pop("default", ""):
            several = [
                {"name": name, "template": text} for name, text in {"default": source, **named}.items()
            ]
            tokenizer_config["chat_template"] = several if named else source
        _write(target / "tokenizer_config.json", tokenizer_config)
        (target / "tokenizer.json").write_text(gguf_tokenizer(keys, vocabulary).to_str())


def _chosen_names(config: ModelConfig) -> set[str]:
    """Return names that are taken in place of others: of Falcon, if attention and MLP have a norm each."""
    layers = config.layers if config.architecture == "FalconForCausalLM" else ()
    return {
        f"transformer.h.{index}.ln_attn.{suffix}"
        for index, layer in enumerate(layers)
        for suffix in ("weight", "bias")
        if layer.parallel and layer.mlp_norm is not None
    }


def _short(value: Any) -> Any:
    """Return a number as it is usually written, if it was stored in fp32: 1e-05 for 9.99999974e-06."""
    if isinstance(value, dict):
        return {key: _short(one) for key, one in value.items()}
    if isinstance(value, float) and float(np.float32(value)) == value:
        return float(str(np.float32(value)))
    return value


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
