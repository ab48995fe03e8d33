"""Makes a model directory of a given shape: random weights, a tokenizer of that vocabulary, a chat template.

The result is a Hugging Face directory of Llama, or of Mixtral if it has experts, that engine and peers
load like any other. Its text makes no sense; it is for measuring only.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from benchmarks.models.random_weights import plan_files, write_files
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
        directory: Made if missing.
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
