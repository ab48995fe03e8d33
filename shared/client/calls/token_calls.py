"""Asks the leaders of a model for tokens of a text, and for the text of tokens."""

from typing import TypeVar

from shared import subjects
from shared.bus import Bus, NoResponders
from shared.bus.endpoint import call
from shared.errors import Unavailable
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
        Unavailable: No group serves the model, or none answered in time.
    """
    return await _ask(bus, subjects.tokenize(query.model, caller), query, Tokenized, timeout_s)


async def detokenize(
    bus: Bus, query: DetokenizeQuery, *, timeout_s: float, caller: Caller | None = None
) -> Detokenized:
    """The text of tokens; raises what `tokenize` raises."""
    return await _ask(bus, subjects.detokenize(query.model, caller), query, Detokenized, timeout_s)


async def _ask(
    bus: Bus, subject: str, query: TokenizeQuery | DetokenizeQuery, kind: type[M], timeout_s: float
) -> M:
    try:
        return await call(bus, subject, query, kind, timeout_s=timeout_s)
    except NoResponders:
        raise Unavailable(
            f"no group serves model {query.model!r} now; the list of models names those that are served",
            reason="no_group",
            retry_after_s=1.0,
        ) from None
