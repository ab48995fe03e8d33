"""Models as JSON objects, for the routes that list and manage them."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from shared.messages import ModelCard, ModelState


def model_object(card: ModelCard, aliases: list[str], state: ModelState | None = None) -> dict[str, Any]:
    """One model as `/v1/models` shows it, with the fields of OpenAI's clients and of Anthropic's.

    A model that a host offers has its `status` as well, and was created when the host learned of it, however
    often it is loaded; another one when its group started.
    """
    created_s = (state.card.created_s if state is not None else 0) or card.created_s
    created = datetime.fromtimestamp(created_s, UTC)
    shown = {
        "id": card.name,
        "object": "model",
        "type": "model",
        "display_name": card.name,
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "created": created_s,
        "owned_by": "ryzanstein",
        "aliases": aliases,
        "max_model_len": card.context_length,
        "fingerprint": card.fingerprint,
        "default_sampling": None if card.sampling is None else msgspec.to_builtins(card.sampling),
    }
    return shown if state is None else shown | {"status": status_object(state)}


def status_object(state: ModelState) -> dict[str, Any]:
    """Whether a model takes requests now, and if not, why."""
    return {
        "phase": state.phase,
        "why": state.why,
        "groups": {"ready": state.groups_ready, "all": state.groups, "most": state.most_groups},
        "waiting": state.waiting,
        "load_s": state.load_s,
        "retry_s": state.retry_s,
        "pinned": state.pinned,
        "priority": state.priority,
    }


def managed_object(state: ModelState) -> dict[str, Any]:
    """One model as operators see it: also the memory that it takes, and that its first group needs."""
    memory = {"charged_bytes": state.charged_bytes, "first_bytes": state.first_bytes}
    return model_object(state.card, state.aliases, state) | {"memory": memory}
