"""Models as JSON objects, for the routes that list and manage them."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from services.gateway.served_models import ServedModel
from shared.messages import Adapter, ModelCard, ModelState


def model_object(card: ModelCard, aliases: list[str], state: ModelState | None = None) -> dict[str, Any]:
    """One model as `/v1/models` shows it, with the fields of OpenAI's clients and of Anthropic's.

    A model that a host offers has its `status` as well, and was created when the host learned of it, however
    often it is loaded; another one when its group started.
    """
    created_s = (state.card.created_s if state is not None else 0) or card.created_s
    shown = {
        "id": card.name,
        "object": "model",
        "type": "model",
        "display_name": card.name,
        "created_at": _text_of(created_s),
        "created": created_s,
        "owned_by": "ryzanstein",
        "aliases": aliases,
        "max_model_len": card.context_length,
        "fingerprint": card.fingerprint,
        "default_sampling": None if card.sampling is None else msgspec.to_builtins(card.sampling),
    }
    return shown if state is None else shown | {"status": status_object(state)}


def served_object(one: ServedModel) -> dict[str, Any]:
    """A model or an adapter as `/v1/models` shows it. The path of an adapter's files is for operators."""
    adapter = one.adapter
    if adapter is None:
        return model_object(one.card, one.aliases, one.state)
    shown = model_object(one.card, one.aliases, one.state)
    return shown | {"created": one.card.created_s, "created_at": _text_of(one.card.created_s),
                    "root": adapter.source_name, "parent": adapter.base, "rank": adapter.rank}  # fmt: skip


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


def managed_object(state: ModelState, adapters: Sequence[Adapter] = ()) -> dict[str, Any]:
    """One model as operators see it: also its memory, that its first group needs, and its adapters."""
    memory = {"charged_bytes": state.charged_bytes, "first_bytes": state.first_bytes}
    shown = [{"id": one.model, **msgspec.to_builtins(one)} for one in adapters]
    return model_object(state.card, state.aliases, state) | {"memory": memory, "adapters": shown}


def _text_of(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
