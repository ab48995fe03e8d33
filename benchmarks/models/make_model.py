"""Makes a model directory of a given shape: random weights, a tokenizer of that vocabulary, a chat template.

The result is a Hugging Face directory of Llama, or of Mixtral if it has experts, that engine and peers
load like any other. Its text makes no sense; it is for measuring only.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod, sqrt
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from benchmarks.models.shapes import BYTES, ModelShape
from training import bpe

MAX_FILE_BYTES = 2 << 30
_TORCH_NAMES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "rope_scaling": None,
    "attention_bias": False,
    "mlp_bias": False,
}
_MIXTRAL = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "sliding_window": None}
_WEIGHTS = ("model*.safetensors", "model.safetensors.index.json")

_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
Spec = tuple[str, tuple[int, ...]]  # name and shape of a tensor


@dataclass(frozen=True, slots=True)
class Made:
    """Sizes of a model that was written."""

    parameters: int
    bytes: int
    files: int


def parameters(shape: ModelShape) -> int:
    """Return how many numbers the model holds."""
    return sum(prod(size) for _, size in shape.tensors())


def make_model(
    directory: Path,
    shape: ModelShape,
    dtype: str = "fp32",
    seed: int = 0,
    *,
    max_file_bytes: int = MAX_FILE_BYTES,
    written: Callable[[int], None] = lambda _: None,
) -> Made:
    """Write the directory; weights of an earlier model in it are removed first.

    Args:
        directory: Is made if it is missing.
        shape: Sizes, checked by the caller (`ModelShape.check`).
        dtype: fp32, fp16 or bf16.
        seed: The same seed and shape give the same bytes.
        max_file_bytes: More than that is spread over several files with an index.
        written: Called with the bytes of weights that were added.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for pattern in _WEIGHTS:
        for old in directory.glob(pattern):
            old.unlink()
    tokenizer = make_tokenizer(shape.vocab, seed)
    _write_texts(directory, shape, dtype, tokenizer)
    files = plan_files(list(shape.tensors()), dtype, max_file_bytes)
    write_files(directory, files, dtype, seed, written)
    count = parameters(shape)
    return Made(parameters=count, bytes=count * BYTES[dtype], files=len(files))


def make_tokenizer(vocab: int, seed: int) -> Tokenizer:
    """Return a byte-level BPE with exactly `vocab` tokens: as many as the corpus gives, the rest made up.

    Made-up merges stand last, so they leave ordinary text nearly alone.
    """
    tokenizer = bpe.train_tokenizer(vocab, seed)
    missing = vocab - tokenizer.get_vocab_size()
    if missing <= 0:
        return tokenizer
    content = json.loads(tokenizer.to_str())
    known: dict[str, int] = content["model"]["vocab"]
    stems = [token for token in known if token not in bpe.SPECIAL_TOKENS]
    for left in stems:  # the loop body appends, so it never runs out
        for right in "etaoinshrdlucmfwypvbgk":
            if left + right in known:
                continue
            if missing == 0:
                return Tokenizer.from_str(json.dumps(content))
            known[left + right] = len(known)
            content["model"]["merges"].append([left, right])
            stems.append(left + right)
            missing -= 1
    raise AssertionError("the stems grow with every merge")


def _write_texts(directory: Path, shape: ModelShape, dtype: str, tokenizer: Tokenizer) -> None:
    ids = bpe.special_ids(tokenizer)
    bos, end = ids[bpe.BOS], ids[bpe.END]
    config: dict[str, Any] = {
        **(_MIXTRAL if shape.experts else _LLAMA),
        "vocab_size": shape.vocab,
        "hidden_size": shape.dim,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.context,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-05,
        "hidden_act": "silu",
        "tie_word_embeddings": shape.tied,
        "bos_token_id": bos,
        "eos_token_id": end,
        "pad_token_id": end,
        "torch_dtype": _TORCH_NAMES[dtype],
    }
    if shape.experts:
        config |= {"num_local_experts": shape.experts, "num_experts_per_tok": shape.chosen}
    generation = {"bos_token_id": bos, "eos_token_id": end, "pad_token_id": end, "do_sample": False}
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": bpe.BOS,
        "eos_token": bpe.END,
        "pad_token": bpe.END,
        "additional_special_tokens": [bpe.SYSTEM, bpe.USER, bpe.ASSISTANT],
        "model_max_length": shape.context,
        "clean_up_tokenization_spaces": False,
        "chat_template": bpe.CHAT_TEMPLATE,
    }
    for name, content in (
        ("config.json", config),
        ("generation_config.json", generation),
        ("tokenizer_config.json", tokenizer_config),
    ):
        (directory / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    tokenizer.save(str(directory / "tokenizer.json"))


def plan_files(specs: Sequence[Spec], dtype: str, max_bytes: int) -> dict[str, list[Spec]]:
    """Return the tensors of each file, of at most `max_bytes` (a larger tensor gets a file of its own)."""
    groups: list[list[Spec]] = [[]]
    filled = 0
    for spec in specs:
        size = prod(spec[1]) * BYTES[dtype]
        if groups[-1] and filled + size > max_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(spec)
        filled += size
    if len(groups) == 1:
        return {"model.safetensors": groups[0]}
    return {
        f"model-{number:05d}-of-{len(groups):05d}.safetensors": group
        for number, group in enumerate(groups, 1)
    }


def write_files(
    directory: Path, files: dict[str, list[Spec]], dtype: str, seed: int, written: Callable[[int], None]
) -> None:
    """Write each file under another name and move it into place when it is whole; an index for several.

    Args:
        files: See `plan_files`.
        dtype: fp32, fp16 or bf16.
        seed: With a tensor's name it decides the tensor's numbers, whatever file it is in.
        written: Called with the bytes that were made.
    """
    total = 0
    for file, specs in files.items():
        tensors = {}
        for name, shape in specs:
            tensors[name] = random_tensor(name, shape, dtype, seed)
            written(tensors[name].nbytes)
            total += tensors[name].nbytes
        partial = directory / f"{file}.partial"
        try:
            save_file(tensors, partial, {"format": "pt"})
            partial.replace(directory / file)
        finally:
            partial.unlink(missing_ok=True)
    if len(files) > 1:
        weight_map = {name: file for file, specs in files.items() for name, _ in specs}
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def random_tensor(name: str, shape: tuple[int, ...], dtype: str, seed: int) -> torch.Tensor:
    """Return the numbers of one tensor.

    Norms are near 1; matrices are normal with the deviation 1 / sqrt(inputs), so that activations keep their
    size from layer to layer and the logits of the next token differ by a few units.
    """
    numbers = np.random.Generator(np.random.SFC64([seed, crc32(name.encode())])).standard_normal(
        shape, dtype=np.float32
    )
    numbers *= np.float32(0.02 if len(shape) == 1 else 1 / sqrt(prod(shape[1:])))
    if len(shape) == 1:
        numbers += np.float32(1)
    return torch.from_numpy(numbers).to(_TYPES[dtype])
