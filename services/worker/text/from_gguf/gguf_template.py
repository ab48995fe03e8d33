"""Reads the chat template of a GGUF file, and finds the token with which it ends an answer."""

from services.worker.json_files import MAX_TEMPLATE_BYTES
from services.worker.text.chat_template import ChatTemplate
from services.worker.text.from_gguf.tokenizer_keys import TokenizerKeys
from services.worker.text.from_gguf.vocabulary import GgufVocabulary
from services.worker.text.template_guard import TemplateOverran
from shared.errors import InvalidRequest
from shared.messages import ChatMessage

_ANSWER = "an answer to this"  # no template changes or searches it
_LIMIT_S = 1.0  # of the rendering at the start


def gguf_template(keys: TokenizerKeys, vocabulary: GgufVocabulary) -> ChatTemplate | None:
    """Compile the template; None if the file has none.

    Raises:
        BadGguf: It is too long, or cannot be compiled.
    """
    source = keys.text("chat_template")
    if not source:
        return None
    if len(source) > MAX_TEMPLATE_BYTES:
        raise keys.refusal(
            f"`tokenizer.chat_template` has {len(source)} characters, {MAX_TEMPLATE_BYTES} are the "
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
        return ChatTemplate(source, {key: text for key, text in special.items() if text})
    except InvalidRequest as error:
        raise keys.refusal(
            f"`tokenizer.chat_template`: {error.message}; use a file with a proper one"
        ) from error


def turn_end(template: ChatTemplate, vocabulary: GgufVocabulary) -> int | None:
    """Return the control token that the template writes after an answer; None if it does not show."""
    said = [
        ChatMessage(role="user", content="a question"),
        ChatMessage(role="assistant", content=_ANSWER),
        ChatMessage(role="user", content="another question"),
    ]
    try:
        rest = template.render(said, _LIMIT_S).partition(_ANSWER)[2].lstrip()
    except (InvalidRequest, TemplateOverran):  # requests will be told
        return None
    texts = {vocabulary.tokens[token_id]: token_id for token_id in vocabulary.control_ids}
    found = [text for text in texts if rest.startswith(text)]
    return texts[max(found, key=len)] if found else None
