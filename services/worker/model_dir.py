"""Reads and checks a model directory in Hugging Face format, except the weights, which the ranks read."""

from pathlib import Path
from typing import Any

from services.worker.json_files import (
    MAX_TEMPLATE_BYTES,
    MAX_TOKENIZER_BYTES,
    BadFile,
    read_object,
    require_size,
    shown,
)
from services.worker.model import MAX_POSITIONS, Model, served_name
from services.worker.sampling_defaults import GENERATION_CONFIG, defaults_of_directory
from services.worker.text.chat_template import ChatTemplate
from services.worker.text.tokenizer import read_tokenizer
from shared.errors import InvalidRequest

MAX_EOS_IDS = 1024
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")


def load_model_dir(path: Path, name: str = "") -> Model:
    """Read a model directory.

    Args:
        path: The directory.
        name: The name callers ask for; empty: the directory's own.

    Raises:
        InvalidRequest: A file is missing, unreadable, or lacks a value; the text names both.
    """
    if not path.is_dir():
        what = "is no directory" if path.exists() else "does not exist"
        raise InvalidRequest(f"the model directory {path} {what}", param="model")
    served_as = served_name(name, path.resolve().name)
    config = _read_json(path / "config.json", required=True)
    tokenizer_config = _read_json(path / "tokenizer_config.json")
    context_length = next((config[key] for key in _CONTEXT_KEYS if isinstance(config.get(key), int)), None)
    if context_length is not None and not 0 < context_length <= MAX_POSITIONS:
        key = next(key for key in _CONTEXT_KEYS if isinstance(config.get(key), int))
        raise InvalidRequest(
            f"{path / 'config.json'}: `{key}` must be a positive integer, at most {MAX_POSITIONS}, got "
            f"{shown(config[key])}",
            param="model",
        )
    if context_length is None:
        raise InvalidRequest(
            f"{path / 'config.json'} has none of {', '.join(_CONTEXT_KEYS)}, which give the context length",
            param="model",
        )
    if not (path / "tokenizer.json").is_file():
        raise InvalidRequest(
            f"{path / 'tokenizer.json'} is missing; a model needs its fast tokenizer file", param="model"
        )
    _require_size(path / "tokenizer.json", MAX_TOKENIZER_BYTES)
    generation = _read_json(path / GENERATION_CONFIG)
    eos = generation.get("eos_token_id", config.get("eos_token_id"))
    return Model(
        name=served_as,
        context_length=context_length,
        eos_ids=_eos_ids(eos, path),
        tokenizer=read_tokenizer(path / "tokenizer.json"),
        template=_template(path, tokenizer_config),
        sampling=defaults_of_directory(generation, path / GENERATION_CONFIG),
    )


def _read_json(path: Path, *, required: bool = False) -> dict[str, Any]:
    if not path.exists():
        if required:
            raise InvalidRequest(f"{path} is missing", param="model")
        return {}
    try:
        return read_object(path)
    except BadFile as error:
        raise InvalidRequest(f"{path} {error}", param="model") from error


def _require_size(path: Path, most: int) -> None:
    try:
        require_size(path, most)
    except (BadFile, OSError) as error:
        raise InvalidRequest(f"{path} {error}", param="model") from error


def _eos_ids(value: object, path: Path) -> frozenset[int]:
    if value is None:
        return frozenset()
    values = value if isinstance(value, list) else [value]
    if len(values) > MAX_EOS_IDS or not all(isinstance(item, int) for item in values):
        raise InvalidRequest(
            f"eos_token_id of {path} must be an integer or a list of at most {MAX_EOS_IDS}", param="model"
        )
    return frozenset(values)


def _template(path: Path, tokenizer_config: dict[str, Any]) -> ChatTemplate | None:
    file = path / "chat_template.jinja"
    if file.is_file():
        _require_size(file, MAX_TEMPLATE_BYTES)
    source = file.read_text() if file.is_file() else tokenizer_config.get("chat_template")
    if isinstance(source, list):  # several named templates
        named = {item.get("name"): item.get("template") for item in source if isinstance(item, dict)}
        source = named.get("default")
    if not isinstance(source, str):
        return None
    special = {
        key: _token(tokenizer_config.get(key)) for key in ("bos_token", "eos_token", "unk_token", "pad_token")
    }
    try:
        return ChatTemplate(source, {key: token for key, token in special.items() if token})
    except InvalidRequest as error:
        place = file if file.is_file() else path / "tokenizer_config.json"
        raise InvalidRequest(f"{place}: {error.message}", param="model") from error


def _token(value: object) -> str:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""
