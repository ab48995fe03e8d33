"""The error for a prompt that does not fit into the model's context."""

from collections.abc import Sequence

from services.worker.domain.generation.turn_context import TurnContext, appends
from shared.errors import ContextLengthExceeded
from shared.messages import ChatMessage, GenerateRequest

_MARKS_CHARS = 8  # about what a template writes around a message
# what else is in a prompt of messages: how much of it, and the remedy
_PARTS = {
    "tools": (", most of them for `tools`", "send fewer tools, or shorter descriptions and schemas"),
    "template": (", most of them for the variables of the template", "send shorter documents or variables"),
}


def too_long(
    model: str,
    request: GenerateRequest,
    turn: TurnContext | None,
    prompt_tokens: int,
    holds: int,
    *,
    full: int,
    exact: bool = True,
) -> ContextLengthExceeded:
    """Returns the error, with what is too long and the remedies that help.

    Args:
        turn: Of its session, if it has one.
        prompt_tokens: Tokens of the prompt.
        holds: Tokens that the context holds.
        full: Tokens of the model's own context, of which the KV cache may hold only a part.
        exact: False if the prompt may have more tokens than that.
    """
    max_tokens = request.sampling.max_tokens
    messages = turn.messages if turn is not None else request.messages
    param = "prompt" if request.messages is None else _largest_part(request, messages or [])
    what, remedy = "the prompt has", "shorten the prompt"
    part = ""
    if param != "messages" and param in _PARTS:
        part, remedy = _PARTS[param]
    elif turn is not None and turn.record is not None and appends(request.messages or [], turn.session):
        what = "the session's history and this message have"
        remedy = "start a new session, or send a shorter conversation with X-Session-Mode: replace"
    asked = ""
    if max_tokens and prompt_tokens < holds:
        asked, remedy = f" and max_tokens is {max_tokens}", f"lower max_tokens, or {remedy}"
    count = prompt_tokens if exact else f"at least {prompt_tokens}"
    cause = ""
    if holds < full:
        cause = f". The KV cache of the group holds no more (RYZ_KV_CACHE_TOKENS); the model takes {full}"
    return ContextLengthExceeded(
        # clients such as LiteLLM know the error by "maximum context length is"
        f"the maximum context length is {holds} tokens for model {model}, {what} {count}{part}{asked}: "
        f"{remedy}{cause}",
        param=param,
        context_length=holds,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens or None,
    )


def _largest_part(request: GenerateRequest, messages: Sequence[ChatMessage]) -> str:
    """The field with more than half of the text in a prompt of messages; `messages` if no other has it."""
    tools = request.tools.tools if request.tools is not None and request.tools.choice != "none" else ()
    chars = {
        "tools": sum(len(tool.name) + len(tool.description) + len(tool.parameters) for tool in tools),
        "template": len(request.template.variables) if request.template is not None else 0,
        "messages": sum(map(_chars, messages)),
    }
    largest = max(chars, key=chars.__getitem__)
    return largest if 2 * chars[largest] > sum(chars.values()) else "messages"


def _chars(message: ChatMessage) -> int:
    calls = sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    return _MARKS_CHARS + len(message.content) + len(message.reasoning) + calls
