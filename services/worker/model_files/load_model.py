"""Opens a model, whatever it is: a directory in Hugging Face format, or a GGUF file."""

from dataclasses import replace
from pathlib import Path

from services.worker.gguf.gguf_file import is_gguf
from services.worker.model_files.gguf_model import has_gguf_template, load_gguf_model
from services.worker.model_files.model import Model
from services.worker.model_files.model_dir import has_template_files, load_model_dir
from services.worker.model_files.sampling_defaults import join_defaults
from services.worker.text.answers.known_formats import BY_NAME
from shared.errors import InvalidRequest
from shared.messages import SamplingDefaults


def load_model(path: Path, name: str = "") -> Model:
    """Read what the leader needs of a model.

    Args:
        path: The directory, or the file `*.gguf`.
        name: The name callers ask for; empty: that of the directory, or of the file without `.gguf`.

    Raises:
        InvalidRequest: A file is missing, unreadable, or lacks a value; the text names both.
    """
    return load_gguf_model(path, name) if is_gguf(path) else load_model_dir(path, name)


def has_chat_template(path: Path) -> bool:
    """Whether a model chats; without a chat template it only completes texts.

    Raises:
        InvalidRequest: A file cannot be read.
    """
    return has_gguf_template(path) if is_gguf(path) else has_template_files(path)


def with_tool_format(model: Model, name: str) -> Model:
    """Returns a model that calls tools in a form.

    Args:
        name: Of the form; empty: that of the model's chat template.

    Raises:
        InvalidRequest: There is no such form, or the template cannot ask for it.
    """
    if not name:
        return model
    if name not in BY_NAME:
        raise InvalidRequest(
            f"RYZ_TOOL_FORMAT: there is no form {name!r}; there are {', '.join(sorted(BY_NAME))}",
            param="tool_format",
        )
    if name != "hermes" and (model.template is None or not model.template.knows_tools):
        raise InvalidRequest(
            f"RYZ_TOOL_FORMAT: the chat template of {model.name} knows no tools, so it can only ask for "
            f"calls in the form 'hermes', not {name!r}",
            param="tool_format",
        )
    return replace(model, tool_format=name)


def with_sampling_defaults(model: Model, own: SamplingDefaults, fallback: SamplingDefaults) -> Model:
    """Returns a model with a default for every parameter of sampling that has one.

    Args:
        model: The model, with the defaults of its files.
        own: Those of the operator, which come first.
        fallback: Those that are taken where its files give none.
    """
    return replace(model, sampling=join_defaults(own, model.sampling, fallback))
