"""Reads the chat template of a GGUF file."""

from services.worker.model_files.json_files import MAX_TEMPLATE_BYTES
from services.worker.text.chat_template import ChatTemplate
from services.worker.text.from_gguf.tokenizer_keys import TokenizerKeys
from services.worker.text.from_gguf.vocabulary import GgufVocabulary
from shared.errors import InvalidRequest

MAX_NAMED = 8  # templates of a file beside its first one; known models have up to three


def has_template(keys: TokenizerKeys) -> bool:
    """Whether the file has a template for requests that name none."""
    return bool(keys.text("chat_template") or keys.named_texts("chat_template", MAX_NAMED).get("default"))


def gguf_template(keys: TokenizerKeys, vocabulary: GgufVocabulary) -> ChatTemplate | None:
    """Compile the template; None if the file has none.

    Raises:
        BadGguf: It is too long, or cannot be compiled.
    """
    named = keys.named_texts("chat_template", MAX_NAMED)
    source = keys.text("chat_template") or named.pop("default", "")
    if not source:
        return None
    for key, text in {"": source, **{f".{name}": text for name, text in named.items()}}.items():
        if len(text) > MAX_TEMPLATE_BYTES:
            raise keys.refusal(
                f"`tokenizer.chat_template{key}` has {len(text)} characters, {MAX_TEMPLATE_BYTES} are the "
                "limit; use a file with a shorter template"
            )
    roles = vocabulary.roles
    special = {
        "bos_token": vocabulary.text(roles.bos),
        "eos_token": vocabulary.text(roles.eos),
        "unk_token": vocabulary.text(roles.unknown),
        "pad_token": vocabulary.text(roles.padding),
    }
    try:
        return ChatTemplate(source, {key: text for key, text in special.items() if text}, named=named)
    except InvalidRequest as error:
        raise keys.refusal(
            f"`tokenizer.chat_template`: {error.message}; use a file with a proper one"
        ) from error
