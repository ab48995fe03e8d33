"""Asks the leaders of a model for tokens of a text, and for the text of tokens."""

from typing import TypeVar

from shared import subjects
from shared.bus import Bus, NoResponders
from shared.bus.endpoint import call
from shared.client.calls.model_list import list_models
from shared.errors import ModelNotFound, Unavailable
from shared.messages import Detokenized, DetokenizeQuery, Tokenized, TokenizeQuery, Wire
from shared.subjects import Caller

M = TypeVar("M", bound=Wire)


async def tokenize(
    bus: Bus, query: TokenizeQuery, *, timeout_s: float, caller: Caller | None = None
) -> Tokenized:
    """The tokens of a prompt.

    Raises:
        InvalidRequest: The query is wrong; `param` names the field.
        ContextLengthExceeded: The prompt is so long that it cannot fit into the context.
        RequestTooLarge: The query or the answer does not fit into a message.
        DeadlineExceeded: The group needs too long for it.
        ModelNotFound: No router knows the model.
        Unavailable: No group of the model answered in time, or no router runs.
    """
    subject = subjects.tokenize(query.model, caller)
    return await _ask(bus, query, Tokenized, subject=subject, timeout_s=timeout_s, caller=caller)


async def detokenize(
    bus: Bus, query: DetokenizeQuery, *, timeout_s: float, caller: Caller | None = None
) -> Detokenized:
    """The text of tokens; raises what `tokenize` raises."""
    subject = subjects.detokenize(query.model, caller)
    return await _ask(bus, query, Detokenized, subject=subject, timeout_s=timeout_s, caller=caller)


async def _ask(
    bus: Bus,
    query: TokenizeQuery | DetokenizeQuery,
    kind: type[M],
    *,
    subject: str,
    timeout_s: float,
    caller: Caller | None,
) -> M:
    try:
        return await call(bus, subject, query, kind, timeout_s=timeout_s)
    except NoResponders:
        pass
    try:
        served = [card.name for card in await list_models(bus, timeout_s=timeout_s, caller=caller)]
    except NoResponders:
        raise Unavailable(
            f"no group of model {query.model!r} answers, and no router tells which models there are",
            reason="no_router",
            retry_after_s=1.0,
        ) from None
    if query.model not in served:
        names = ", ".join(served) or "none at the moment"
        raise ModelNotFound(
            f"no group serves model {query.model!r}; models that are served: {names}", param="model"
        )
    raise Unavailable(
        f"no group of model {query.model!r} answers questions about tokens now",
        reason="no_group",
        retry_after_s=1.0,
    )
