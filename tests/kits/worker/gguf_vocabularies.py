"""Small GGUF files with a vocabulary and without tensors, for tests of tokenizers."""

import json
from pathlib import Path
from typing import Any

from gguf import GGUFWriter, TokenType
from tokenizers import Tokenizer

from tests.kits.worker.tokenizers import byte_level

BYTE_PIECES = [f"<0x{byte:02X}>" for byte in range(256)]


def write_gguf(path: Path, keys: dict[str, Any], context_length: int | None = 64) -> Path:
    """Write a file with these keys of the tokenizer, given without `tokenizer.`; None leaves one out."""
    writer = GGUFWriter(path, "llama")
    if context_length is not None:
        writer.add_context_length(context_length)
    for key, value in keys.items():
        name = f"tokenizer.{key}"
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, list) and value:
            writer.add_array(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def byte_level_keys(tokenizer: Tokenizer | None = None, pre: str = "gpt-2") -> dict[str, Any]:
    """Return what a file says of a byte-level tokenizer; its special tokens are control tokens."""
    tokenizer = tokenizer or byte_level()
    spec = json.loads(tokenizer.to_str())
    ids = tokenizer.get_vocab(with_added_tokens=True)
    types = dict.fromkeys(ids, TokenType.NORMAL)
    for token in spec["added_tokens"]:
        types[token["content"]] = TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED
    tokens = sorted(ids, key=ids.__getitem__)
    return {
        "ggml.model": "gpt2",
        "ggml.pre": pre,
        "ggml.tokens": tokens,
        "ggml.token_type": [int(types[token]) for token in tokens],
        "ggml.merges": [" ".join(merge) for merge in spec["model"]["merges"]],
    }


def piece_keys(pieces: dict[str, float], model: str = "llama") -> dict[str, Any]:
    """Return what a file says of a SentencePiece vocabulary: its special tokens, bytes, and these pieces."""
    special = ["<unk>", "<s>", "</s>"]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
    return {
        "ggml.model": model,
        "ggml.tokens": [*special, *BYTE_PIECES, *pieces],
        "ggml.scores": [0.0] * (len(special) + 256) + [float(score) for score in pieces.values()],
        "ggml.token_type": [int(kind) for kind in kinds] + [int(TokenType.NORMAL)] * len(pieces),
        "ggml.unknown_token_id": 0,
        "ggml.bos_token_id": 1,
        "ggml.eos_token_id": 2,
    }
