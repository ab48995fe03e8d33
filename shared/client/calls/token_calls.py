"""Asks the leaders of a model for tokens of a text, and for the text of tokens."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from shared import subjects
from shared.bus import Bus, NoResponders
from shared.bus.endpoint import FIRST_PAUSE_S, MAX_PAUSE_S, call
from shared.client.calls.model_list import (
    known_models,
    no_model_ready,
    not_ready,
    offered_state,
    unknown_model,
    usable_names,
)
from shared.errors import ModelNotFound, RyzError, Unavailable
from shared.flow.backoff import Backoff
from shared.messages import Detokenized, DetokenizeQuery, Tokenized, TokenizeQuery, Wire
from shared.subjects import OutsideService

M = TypeVar("M", bound=Wire)
# these questions load no model, so waiting would not help
_NOT_WAITED_FOR = frozenset({"waking", "model_failed", "model_unloaded"})


async def tokenize(
    bus: Bus,
    query: TokenizeQuery,
    *,
    timeout_s: float,
    caller: OutsideService | None = None,
    wait_s: float = 0.0,
) -> Tokenized:
    """The tokens of a prompt.

    Args:
        bus: The connection.
        query: The prompt and the model.
        timeout_s: How long a group may take.
        caller: The name of a service outside.
        wait_s: How long to wait for a router, or for a group of a model that a router knows.

    Raises:
        InvalidRequest: The query is wrong; `param` names the field.
        ContextLengthExceeded: The prompt is so long that it cannot fit into the context.
        RequestTooLarge: The query or the answer does not fit into a message.
        DeadlineExceeded: The group needs too long for it.
        ModelNotFound: No router knows the model.
        Unavailable: No group of the model answered in time, or no router runs.
    """
    subject = subjects.tokenize(query.model, caller)
    ask = partial(call, bus, subject, query, Tokenized, timeout_s=timeout_s)
    return await _wait_for_group(bus, query, ask, timeout_s=timeout_s, caller=caller, wait_s=wait_s)


async def detokenize(
    bus: Bus,
    query: DetokenizeQuery,
    *,
    timeout_s: float,
    caller: OutsideService | None = None,
    wait_s: float = 0.0,
) -> Detokenized:
    """The text of tokens; raises what `tokenize` raises."""
    subject = subjects.detokenize(query.model, caller)
    ask = partial(call, bus, subject, query, Detokenized, timeout_s=timeout_s)
    return await _wait_for_group(bus, query, ask, timeout_s=timeout_s, caller=caller, wait_s=wait_s)


async def _wait_for_group(
    bus: Bus,
    query: TokenizeQuery | DetokenizeQuery,
    ask: Callable[[], Awaitable[M]],
    *,
    timeout_s: float,
    caller: OutsideService | None,
    wait_s: float,
) -> M:
    """Asks the leaders; while none listens, waits if a router knows the model or none is there to say so."""
    loop, pauses = asyncio.get_running_loop(), Backoff(FIRST_PAUSE_S, MAX_PAUSE_S)
    until = loop.time() + wait_s
    while True:
        try:
            return await ask()
        except (
            NoResponders,
            ModelNotFound,
        ):  # the second: the tenant may not use it, as if it were not there
            pass
        refusal = await _refusal(bus, query, timeout_s=timeout_s, caller=caller)
        pause_s = pauses.next_s()
        hopeless = not isinstance(refusal, Unavailable) or refusal.data.get("reason") in _NOT_WAITED_FOR
        if hopeless or loop.time() + pause_s > until:
            raise refusal
        await asyncio.sleep(pause_s)


async def _refusal(
    bus: Bus, query: TokenizeQuery | DetokenizeQuery, *, timeout_s: float, caller: OutsideService | None
) -> RyzError:
    """The error for a model of which no leader listens, or whose leaders do not answer this tenant."""
    model = query.model
    try:
        known = await known_models(bus, timeout_s=timeout_s, caller=caller, tenant=query.tenant)
    except NoResponders:
        return Unavailable(
            f"no group of model {model!r} answers, and no router tells which models there are",
            reason="no_router",
            retry_after_s=1.0,
        )
    served, state = usable_names(known), offered_state(model, known)
    if state is not None and state.phase != "ready":
        return not_ready(state)
    if not served and model not in known.away:
        return no_model_ready(model)
    if model not in served and model not in known.away:
        return unknown_model(model, served)
    return Unavailable(
        f"no group of model {model!r} answers questions about tokens now",
        reason="no_group",
        retry_after_s=1.0,
    )
