"""Which model and which adapter the name in a request means. Pure.

A name that is served, or offered by a host, means that model. Else `base:name` means an adapter of the
register. An answer that an adapter has begun goes on with the same content, or not at all.
"""

from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from services.router.domain.decision import Refusal, RequestFacts
from services.router.domain.policies.base import RETRY_STARTING_S
from shared.adapters.register import AdapterRegister
from shared.messages import Adapter

_SHOWN = 20  # names of adapters in an error


class Meant(NamedTuple):
    """The facts under the name of the model that groups serve, and the adapter that is meant."""

    facts: RequestFacts
    adapter: Adapter | None = None


def resolve(
    facts: RequestFacts, register: AdapterRegister, is_model: Callable[[str], bool]
) -> Meant | Refusal:
    """Returns what a request means.

    Args:
        facts: With the name that the caller gave.
        register: The adapters that are known.
        is_model: Whether a group serves a model of that name, or a host offers it.
    """
    base, colon, name = facts.model.rpartition(":")
    if not colon or is_model(facts.model):
        return Meant(facts)
    adapter = register.find(facts.model)
    weights, _, begun_with = facts.weights.partition("+")
    if begun_with and (adapter is None or adapter.fingerprint != begun_with):
        adapter = register.former(base, begun_with)
        if adapter is None and register.is_current:
            return _changed(facts.model)
    if adapter is not None:
        meant = replace(
            facts,
            model=base,
            weights=weights,
            adapter=adapter.fingerprint,
            adapter_bytes=adapter.num_bytes,
        )
        return Meant(meant, adapter)
    if not is_model(base):
        return Meant(facts)  # refused as any name that nothing has
    if not register.is_current:
        return adapters_not_read(base)
    return _unknown(base, name, [one.name for one in register.of_base(base)])


def adapters_not_read(base: str) -> Refusal:
    """The refusal of a router that does not know the register."""
    message = f"the adapters of model {base!r} are not known yet: the KV state service does not answer"
    return Refusal("unavailable", "adapters_unknown", message, RETRY_STARTING_S)


def _changed(model: str) -> Refusal:
    """The refusal to go on with another content than that which began."""
    message = f"adapter {model!r} was replaced or unloaded while it answered; send the request again"
    return Refusal("unavailable", "adapter_changed", message)


def _unknown(base: str, name: str, known: list[str]) -> Refusal:
    more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    names = f"its adapters: {', '.join(known[:_SHOWN])}{more}" if known else "it has none"
    message = f"model {base!r} has no adapter {name!r}; {names}"
    return Refusal("model_not_found", "unknown_adapter", message, param="model")
