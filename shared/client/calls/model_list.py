"""Asks the routers what they serve."""

from collections.abc import Iterable

from shared import subjects
from shared.bus import Bus
from shared.bus.endpoint import call
from shared.errors import ModelNotFound, RyzError, Unavailable
from shared.messages import ListModels, ModelCard, ModelList, ModelState
from shared.subjects import OutsideService

RETRY_S = 1.0


async def list_models(
    bus: Bus, *, timeout_s: float = 2.0, caller: OutsideService | None = None, wait_s: float = 0.0
) -> list[ModelCard]:
    """The models that a router can route to now.

    Args:
        bus: The connection.
        timeout_s: How long a router may take.
        caller: The name of a service outside.
        wait_s: How long to wait for a router while none runs.

    Raises:
        Unavailable: no router runs, or none answered in time.
    """
    return (await known_models(bus, timeout_s=timeout_s, caller=caller, wait_s=wait_s)).models


async def known_models(
    bus: Bus, *, timeout_s: float, caller: OutsideService | None = None, wait_s: float = 0.0, tenant: str = ""
) -> ModelList:
    """The models that can be routed to, and those whose groups are all away; like `list_models`.

    With `tenant` only what that tenant may use; of a caller outside its own tenant counts.
    """
    subject = subjects.models(caller)
    return await call(bus, subject, ListModels(tenant=tenant), ModelList, timeout_s=timeout_s, wait_s=wait_s)


def offered_state(model: str, known: ModelList) -> ModelState | None:
    """The state of a model that a host offers; None: none does."""
    return next((state for state in known.offered if state.card.name == model), None)


def not_ready(state: ModelState) -> Unavailable:
    """The error for a model that a host offers and of which no group is ready, as routers refuse requests."""
    name = state.card.name
    if state.phase == "failed":
        return Unavailable(
            f"model {name!r} could not be loaded: {state.why}",
            reason="model_failed",
            retry_after_s=max(RETRY_S, state.retry_s),
        )
    if state.phase == "absent" and state.why == "unload":
        return Unavailable(
            f"model {name!r} was unloaded by an operator; `ryz models load {name}` brings it back",
            reason="model_unloaded",
        )
    return Unavailable(
        f"model {name!r} is {state.phase}; a request for an answer of it loads it",
        reason="waking",
        retry_after_s=max(RETRY_S, state.load_s),
    )


def not_served(model: str, known: ModelList) -> RyzError:
    """The error for a model that no group serves now: it is loading or away, or it is not known.

    Args:
        model: None of those in `known.models`.
        known: What a router knows.
    """
    state = offered_state(model, known)
    if state is not None:
        return not_ready(state)
    if model in known.away:
        return Unavailable(
            f"no group of model {model[:128]!r} is ready now; one may be starting",
            reason="no_group",
            retry_after_s=1.0,
        )
    if not known.models and not known.offered:
        return no_model_ready(model)
    return unknown_model(model, usable_names(known))


def usable_names(known: ModelList) -> list[str]:
    """The models that a request can name: those that are ready, then those that hosts can load."""
    ready = [card.name for card in known.models]
    return ready + [name for state in known.offered if (name := state.card.name) not in ready]


def unknown_model(model: str, served: Iterable[str]) -> ModelNotFound:
    """The error for a model that is not known, which names those that are served, as routers do."""
    names = ", ".join(served)
    return ModelNotFound(
        f"no group serves model {model[:128]!r}; models that are served: {names}", param="model"
    )


def no_model_ready(model: str = "") -> Unavailable:
    """The error while no group of any model is ready: what is asked for may be starting."""
    which = f"one of {model[:128]!r}" if model else "one"
    return Unavailable(
        f"no group of any model is ready; {which} may be starting", reason="no_group", retry_after_s=1.0
    )
