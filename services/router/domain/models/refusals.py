"""Why a router refuses a request for a model that hosts offer, while no group of it takes requests. Pure.

Only `waking` asks the client to offer the request again until its deadline.
"""

from services.router.domain.decision import Refusal
from services.router.domain.models.states import SCALED_TO_NONE
from services.router.domain.policies.base import RETRY_MAX_S, RETRY_MIN_S, RETRY_STARTING_S
from shared.messages import ModelState
from shared.messages.models import Phase

WAKING = "waking"
_DOES: dict[Phase, str] = {
    "loading": "is loading",
    "draining": "is being put to sleep, and is woken again",
    "asleep": "is asleep, and is being woken",
    "absent": "is not loaded yet, and is about to be",
}


def refuse_offered(state: ModelState, *, parked: str, loading_for_s: float, too_large: str) -> Refusal:
    """The refusal of a request for a model that is offered.

    Args:
        parked: How an operator took it away; empty if none did.
        loading_for_s: For how long it has been loading.
        too_large: Why it can never be loaded; empty if it can.
    """
    name = state.card.name
    if parked:
        did, remedy = ("scaled to no groups", f"scale {name} 1") if parked == SCALED_TO_NONE else (
            "unloaded", f"load {name}"
        )  # fmt: skip
        message = f"model {name!r} was {did} by an operator; `ryz models {remedy}` brings it back"
        return Refusal("unavailable", "model_unloaded", message)
    if state.phase == "failed":
        message = f"model {name!r} could not be loaded: {state.why}"
        retry_s = max(RETRY_MIN_S, state.retry_s) if state.retry_s else None
        return Refusal("unavailable", "model_failed", message, retry_s)
    if too_large and not state.groups:
        return Refusal("unavailable", "model_too_large", f"model {name!r} is not loaded: {too_large}")
    wait_s = state.load_s - loading_for_s if state.load_s else RETRY_STARTING_S
    retry_s = min(RETRY_MAX_S, max(RETRY_MIN_S, wait_s))
    return Refusal("unavailable", WAKING, f"model {name!r} {_DOES.get(state.phase, 'starts')}", retry_s)


def refuse_away(model: str) -> Refusal:
    """The refusal of a request for a model whose hosts are silent; it waits, as for a group that is away."""
    message = f"the host that offers model {model!r} is silent; it may be back in a moment"
    return Refusal("unavailable", "no_group", message, RETRY_STARTING_S)


def unknown_model(model: str, names: list[str]) -> Refusal:
    """The refusal of a request for a model that no host offers and no group serves."""
    message = (
        f"no host offers model {model[:128]!r}, and no group serves it; models that are: {', '.join(names)}"
    )
    return Refusal("model_not_found", "unknown_model", message, param="model")
