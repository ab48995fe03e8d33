"""The error for a prompt that does not fit into the model's context."""

from services.worker.domain.generation.turn_context import TurnContext, appends
from shared.errors import ContextLengthExceeded
from shared.messages import GenerateRequest


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
    what, remedy = "the prompt has", "shorten the prompt"
    if turn is not None and turn.record is not None and appends(request.messages or [], turn.session):
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
        f"the maximum context length is {holds} tokens for model {model}, {what} {count}{asked}: {remedy}"
        f"{cause}",
        param="messages" if request.messages is not None else "prompt",
        context_length=holds,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens or None,
    )
