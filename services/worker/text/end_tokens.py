"""Finds the control tokens that a chat template writes, above all the one with which it ends an answer."""

from collections.abc import Iterable, Mapping

from services.worker.text.chat_template import ChatTemplate
from services.worker.text.template_guard import TemplateOverran
from shared.errors import InvalidRequest
from shared.messages import ChatMessage

_ANSWER = "an answer to this"  # no template changes or searches it
_LIMIT_S = 1.0  # of the rendering at the start
# where a vocabulary has one of these pairs, `<|end|>` ends one of several messages of an answer
_CHANNELS = (frozenset({"<|return|>", "<|call|>"}), frozenset({"<|flush|>", "<|calls|>"}))


def ends_messages_only(text: str, texts: Mapping[str, int] | frozenset[str]) -> bool:
    """Returns whether a token ends one of several messages of an answer, and so not the answer.

    Args:
        texts: Of all control tokens of the vocabulary.
    """
    return text == "<|end|>" and any(all(mark in texts for mark in pair) for pair in _CHANNELS)


def turn_end(template: ChatTemplate, texts: Mapping[str, int]) -> int | None:
    """Returns the control token that the template writes after an answer; None if it does not show.

    Args:
        texts: The ids of its control tokens by their texts.
    """
    rest = _conversation(template).partition(_ANSWER)[2].lstrip()
    found = max((text for text in texts if rest.startswith(text)), key=len, default="")
    return None if not found or ends_messages_only(found, texts) else texts[found]


def written_texts(template: ChatTemplate, texts: Iterable[str]) -> list[str]:
    """Returns those of the texts that the template writes in a short conversation."""
    prompt = _conversation(template)
    return [text for text in texts if text in prompt]


def _conversation(template: ChatTemplate) -> str:
    """Returns the prompt of a short conversation; empty if the template refuses it, or is too slow."""
    if template.probed.too_slow:
        return ""
    said = [
        ChatMessage(role="user", content="a question"),
        ChatMessage(role="assistant", content=_ANSWER),
        ChatMessage(role="user", content="another question"),
    ]
    try:
        return template.render(said, _LIMIT_S)
    except (InvalidRequest, TemplateOverran):  # requests get the reason
        return ""
