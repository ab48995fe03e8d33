"""Reads what the leader needs of a GGUF file: its tokenizer, chat template, end tokens and context length."""

from pathlib import Path

from services.worker.gguf.architectures.base import EMBEDDING
from services.worker.gguf.gguf_file import GgufFile, read_gguf
from services.worker.gguf.header_bytes import BadGguf
from services.worker.model_files.json_files import shown
from services.worker.model_files.model import MAX_POSITIONS, Model, served_name, within_embedding
from services.worker.model_files.sampling_defaults import defaults_of_gguf
from services.worker.text.end_tokens import turn_end
from services.worker.text.from_gguf.gguf_template import gguf_template, has_template
from services.worker.text.from_gguf.gguf_tokenizer import gguf_tokenizer
from services.worker.text.from_gguf.tokenizer_keys import TokenizerKeys
from services.worker.text.from_gguf.vocabulary import read_vocabulary
from services.worker.text.tokenizer import LibraryTokenizer
from shared.errors import InvalidRequest


def load_gguf_model(path: Path, name: str = "") -> Model:
    """Read a GGUF file.

    Args:
        name: The name callers ask for; empty: that of the file without `.gguf`.

    Raises:
        InvalidRequest: The file cannot be read, or lacks a value; the text names both.
    """
    served_as = served_name(name, path.stem)
    try:
        return _model(read_gguf(path), served_as)
    except BadGguf as error:
        raise InvalidRequest(str(error), param="model") from error


def has_gguf_template(path: Path) -> bool:
    """Whether a GGUF file has a chat template.

    Raises:
        InvalidRequest: It cannot be read.
    """
    try:
        return has_template(TokenizerKeys(path, read_gguf(path).metadata))
    except BadGguf as error:
        raise InvalidRequest(str(error), param="model") from error


def _model(file: GgufFile, name: str) -> Model:
    keys = TokenizerKeys(file.path, file.metadata)
    context_length = _context_length(file)
    vocabulary = read_vocabulary(keys)
    template = gguf_template(keys, vocabulary)
    roles = vocabulary.roles
    embedding = file.tensors.get(EMBEDDING)
    num_rows = embedding.shape[0] if embedding is not None else len(vocabulary.tokens)
    tokenizer = LibraryTokenizer(gguf_tokenizer(keys, vocabulary))
    tokenizer = within_embedding(tokenizer, template, num_rows, file.path)
    for role, token_id in (("eos", roles.eos), ("eot", roles.eot), ("eom", roles.eom)):
        if token_id is not None and token_id >= num_rows:
            raise keys.error(f"ggml.{role}_token_id", f"must be below the {num_rows} rows of the embedding")
    ends = {roles.eos, *roles.ends, turn_end(template, vocabulary.control_texts) if template else None}
    return Model(
        name=name,
        context_length=context_length,
        eos_ids=frozenset(one for one in ends if one is not None and one < num_rows),
        tokenizer=tokenizer,
        template=template,
        sampling=defaults_of_gguf(file.metadata, file.path),
    )


def _context_length(file: GgufFile) -> int:
    key = f"{file.architecture}.context_length"
    length = file.metadata.get(key)
    if type(length) is not int or not 0 < length <= MAX_POSITIONS:
        raise BadGguf(
            f"{file.path}: `{key}` must be a positive integer, at most {MAX_POSITIONS}, got {shown(length)}; "
            "convert the model again"
        )
    return length
