"""Writes a Hugging Face directory as a GGUF file, quantized by the `gguf` package where that is asked for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType

from cli.models.convert.gguf_model import GgufModel
from cli.models.convert.gguf_tokenizer_keys import tokenizer_keys
from services.worker.gguf.header_bytes import BadGguf
from services.worker.model_files.json_files import BadFile, read_object
from services.worker.model_files.model_dir import template_sources
from shared.errors import InvalidRequest


class HfToGguf:
    """A conversion that has been checked as far as config, tokenizer and headers go.

    Args:
        kind: Type of the matrices; None: as they are. What is no matrix is F32, as in all GGUF files. A
            matrix whose rows are no whole blocks of that type is F16.

    Raises:
        BadGguf: Something in the model cannot be said in a GGUF file.
        ModelError: The model cannot be served by this program.
    """

    def __init__(self, source: Path, kind: GGMLQuantizationType | None) -> None:
        self._model = GgufModel(source, kind)
        self._keys = tokenizer_keys(source, self._model.config.vocab_size, _texts(source))

    @property
    def total(self) -> int:
        """Return the bytes that are read."""
        return self._model.total

    @property
    def needed(self) -> int:
        """Return the bytes that the weights will take."""
        return self._model.needed

    def write(self, target: Path, progress: Callable[[int], None]) -> None:
        """Write the file.

        Args:
            progress: Called with the bytes that have been read so far.
        """
        self._model.write(target, self._keys, progress)


def _texts(source: Path) -> dict[str, Any]:
    """Return `tokenizer_config.json` with the chat templates by name, wherever the directory has them."""
    path = source / "tokenizer_config.json"
    try:
        found = read_object(path) if path.exists() else {}
        _, templates = template_sources(source, found)
    except (OSError, BadFile, ValueError) as error:
        raise BadGguf(f"{path} cannot be read: {error}") from error
    except InvalidRequest as error:
        raise BadGguf(error.message) from error
    return found | {"chat_template": templates}
