"""Reads and checks a model directory in Hugging Face format, except the weights, which the ranks read."""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from services.worker.model_files.end_ids import EndIds
from services.worker.model_files.json_files import (
    MAX_TEMPLATE_BYTES,
    MAX_TOKENIZER_BYTES,
    BadFile,
    read_object,
    require_size,
    shown,
)
from services.worker.model_files.model import MAX_POSITIONS, Model, served_name, within_embedding
from services.worker.model_files.sampling_defaults import GENERATION_CONFIG, defaults_of_directory
from services.worker.text.chat_template import ChatTemplate
from services.worker.text.tokenizer import read_tokenizer
from shared.errors import InvalidRequest

MAX_NAMED = 8  # templates of a model beside its first one; known models have up to three
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")


def load_model_dir(path: Path, name: str = "") -> Model:
    """Read a model directory.

    Args:
        name: The name callers ask for; empty: the directory's own.

    Raises:
        InvalidRequest: A file is missing, unreadable, or lacks a value; the text names both.
    """
    if not path.is_dir():
        what = "is no directory" if path.exists() else "does not exist"
        raise InvalidRequest(f"the model directory {path} {what}", param="model")
    served_as = served_name(name, path.resolve().name)
    config = _read_json(path / "config.json", required=True)
    tokenizer_config = _read_tokenizer_config(path)
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
    ends = EndIds.read(path, config, generation)
    template = _template(path, tokenizer_config)
    tokenizer = read_tokenizer(path / "tokenizer.json")
    tokenizer = within_embedding(tokenizer, template, ends.num_rows, path / "tokenizer.json")
    return Model(
        name=served_as,
        context_length=context_length,
        eos_ids=ends.joined(tokenizer, template, _token(tokenizer_config.get("eos_token"))),
        tokenizer=tokenizer,
        template=template,
        sampling=defaults_of_directory(generation, path / GENERATION_CONFIG),
    )


def has_template_files(path: Path) -> bool:
    """Whether a directory has a chat template.

    Raises:
        InvalidRequest: A file is too large, or cannot be read.
    """
    return "default" in template_sources(path, _read_tokenizer_config(path))[1]


def _read_tokenizer_config(path: Path) -> dict[str, Any]:
    given = _read_json(path / "tokenizer_config.json")
    config = _read_json(path / "special_tokens_map.json")  # older directories name tokens only here
    return config | {key: value for key, value in given.items() if value is not None}


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


def _template(path: Path, tokenizer_config: dict[str, Any]) -> ChatTemplate | None:
    file, named = template_sources(path, tokenizer_config)
    source = named.pop("default", None)
    if source is None:
        return None
    special = {
        key: _token(tokenizer_config.get(key)) for key in ("bos_token", "eos_token", "unk_token", "pad_token")
    }
    try:
        return ChatTemplate(source, {key: token for key, token in special.items() if token}, named=named)
    except InvalidRequest as error:
        raise InvalidRequest(f"{file}: {error.message}", param="model") from error


def template_sources(path: Path, tokenizer_config: dict[str, Any]) -> tuple[Path, dict[str, str]]:
    """Return the file with the chat templates, and these by name; files of their own come first.

    Args:
        tokenizer_config: Content of `tokenizer_config.json`.

    Raises:
        InvalidRequest: A file is too large, or cannot be read.
    """
    file = path / "chat_template.jinja"
    if file.is_file():
        files = {"default": file}
        for more in sorted(itertools.islice((path / "additional_chat_templates").glob("*.jinja"), MAX_NAMED)):
            files[more.stem] = more
        for each in files.values():
            _require_size(each, MAX_TEMPLATE_BYTES)
        return file, {name: _read_text(each) for name, each in files.items()}
    file, source = path / "tokenizer_config.json", tokenizer_config.get("chat_template")
    if source is None:  # as processors of older models have it
        file = path / "chat_template.json"
        source = _read_json(file).get("chat_template")
    if isinstance(source, str):
        return file, {"default": source}
    items: Iterable[tuple[Any, Any]] = source.items() if isinstance(source, dict) else ()
    if isinstance(source, list):
        items = ((one.get("name"), one.get("template")) for one in source if isinstance(one, dict))
    named = ((name, text) for name, text in items if isinstance(name, str) and isinstance(text, str))
    return file, dict(itertools.islice(named, MAX_NAMED + 1))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{path} cannot be read: {error}", param="model") from error


def _token(value: object) -> str:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""
