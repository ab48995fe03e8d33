"""The model's defaults of sampling, for what a request leaves out.

Each parameter has the value of the first of these that gives one: the setting `RYZ_SAMPLING_DEFAULTS`, the
model's own files (`generation_config.json`, or the keys `general.sampling.*` of a GGUF file), the setting
`RYZ_SAMPLING_FALLBACK`, in which `ryz up` puts what its catalogue says, and `LAST`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from services.worker.gguf.gguf_file import is_gguf, read_gguf
from services.worker.model_files.json_files import BadFile, read_object, shown
from shared.errors import InvalidRequest
from shared.messages import SamplingDefaults
from shared.messages.generate import DEFAULTED

OPENAI = SamplingDefaults(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0)
LAST = SamplingDefaults(temperature=0.6, top_p=0.95, top_k=0, min_p=0.0, repetition_penalty=1.0)
GENERATION_CONFIG = "generation_config.json"
_DIGITS = 6  # GGUF files hold floats of 32 bits
_GGUF_KEYS = {
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "top_k": "general.sampling.top_k",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}


def parse_sampling(text: str) -> SamplingDefaults:
    """Reads the value of a setting.

    Args:
        text: `openai`, or assignments such as `temperature=0.2,top_p=0.9`; empty: no value is given.

    Raises:
        ValueError: It is neither, or a value is out of range.
    """
    if text.strip() == "openai":
        return OPENAI
    values: dict[str, float] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, number = (word.strip() for word in part.partition("="))
        if name not in DEFAULTED:
            raise ValueError(
                f"must be `openai`, or `NAME=NUMBER,...` with the names {', '.join(DEFAULTED)}; got {part!r}"
            )
        values[name] = _number(name, number)
    try:
        return msgspec.convert(values, SamplingDefaults)
    except (msgspec.ValidationError, ValueError) as error:
        raise ValueError(str(error)) from None


def defaults_of_directory(config: Mapping[str, Any], path: Path) -> SamplingDefaults:
    """Reads the defaults of a `generation_config.json`.

    As in transformers, `do_sample` false means the likeliest token, whatever the other fields say.

    Args:
        path: Of the file, for errors.

    Raises:
        InvalidRequest: A value is none that sampling has; names file and field.
    """
    found = {name: config[name] for name in DEFAULTED if config.get(name) is not None}
    if config.get("do_sample") is False:
        found = {"temperature": 0.0} | {
            name: value for name, value in found.items() if name == "repetition_penalty"
        }
    return _checked(found, {name: name for name in found}, path)


def defaults_of_gguf(metadata: Mapping[str, Any], path: Path) -> SamplingDefaults:
    """Reads the defaults of a GGUF file; arguments and errors as in `defaults_of_directory`."""
    found = {name: metadata[key] for name, key in _GGUF_KEYS.items() if key in metadata}
    rounded = {
        name: float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
        for name, value in found.items()
    }
    return _checked(rounded, _GGUF_KEYS, path)


def defaults_of_files(path: Path) -> SamplingDefaults:
    """Reads the defaults of a model that is not loaded: a directory or a GGUF file.

    Raises:
        InvalidRequest: A value is none that sampling has.
        BadGguf: The file cannot be read.
    """
    if is_gguf(path):
        return defaults_of_gguf(read_gguf(path, vocabulary=False).metadata, path)
    file = path / GENERATION_CONFIG
    if not file.is_file():
        return SamplingDefaults()
    try:
        return defaults_of_directory(read_object(file), file)
    except BadFile as error:
        raise InvalidRequest(f"{file} {error}", param="model") from error


def join_defaults(*sources: SamplingDefaults) -> SamplingDefaults:
    """Returns for each parameter the value of the first source that gives one, and at last that of `LAST`."""
    joined = SamplingDefaults()
    for source in (*sources, LAST):
        missing = {name: getattr(source, name) for name in DEFAULTED if getattr(joined, name) is None}
        joined = msgspec.structs.replace(joined, **missing)
    return joined


def _number(name: str, text: str) -> float:
    try:
        return int(text) if name == "top_k" else float(text)
    except ValueError:
        raise ValueError(f"`{name}` must be a number, got {text[:64]!r}") from None


def _checked(values: Mapping[str, Any], keys: Mapping[str, str], path: Path) -> SamplingDefaults:
    """Converts values one by one, so that an error names the key in the file."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        given = 0 if name == "top_k" and value == -1 else value
        try:
            one = msgspec.convert({name: given}, SamplingDefaults)
        except (msgspec.ValidationError, ValueError) as error:
            why = str(error).partition(" - at ")[0]
            raise InvalidRequest(
                f"{path}: `{keys[name]}` is {shown(value)}, which is no value for sampling ({why}); correct "
                "the file",
                param="model",
            ) from error
        found[name] = getattr(one, name)
    return SamplingDefaults(**found)
