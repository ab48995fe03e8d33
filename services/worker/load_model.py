"""Opens a model, whatever it is: a directory in Hugging Face format, or a GGUF file."""

from pathlib import Path

from services.worker.gguf.gguf_file import is_gguf
from services.worker.gguf_model import load_gguf_model
from services.worker.model import Model
from services.worker.model_dir import load_model_dir


def load_model(path: Path, name: str = "") -> Model:
    """Read what the leader needs of a model.

    Args:
        path: The directory, or the file `*.gguf`.
        name: The name callers ask for; empty: that of the directory, or of the file without `.gguf`.

    Raises:
        InvalidRequest: A file is missing, unreadable, or lacks a value; the text names both.
    """
    return load_gguf_model(path, name) if is_gguf(path) else load_model_dir(path, name)
