"""The models that can be asked for, ready or not, for the transports that list them."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from services.gateway.admission.identity.identity import Identity
from services.gateway.answering.intake.model_names import ModelAliases, UsableModels, alias_named
from shared.client.calls.model_list import not_served, usable_names
from shared.errors import ModelNotFound, Unavailable
from shared.messages import Adapter, ModelCard, ModelList, ModelState

KnownModels = Callable[[str], Awaitable[ModelList]]  # of what a tenant may use; of all, if that is empty


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that can be asked for.

    Attributes:
        aliases: Its other names.
        ready: A group takes requests; else a request waits until a host has loaded the model.
        state: What a router knows of it; None: no host offers it.
        adapter: What it is if it is an adapter; the rest then is that of its base.
    """

    card: ModelCard
    aliases: list[str]
    ready: bool
    state: ModelState | None = None
    adapter: Adapter | None = None


def adapter_card(base: ModelCard, adapter: Adapter) -> ModelCard:
    """The card of an adapter: that of its base, under its own name."""
    weights = f"{base.fingerprint}+{adapter.fingerprint}" if base.fingerprint else ""
    return msgspec.structs.replace(
        base, name=adapter.model, fingerprint=weights, created_s=adapter.created_s or base.created_s
    )


class ServedModels:
    """The models.

    Args:
        known: Returns the models that a router knows; raises an error of the family if none answers.
        aliases: Find the models that are meant by other names.
        usable: Find which models callers may use.
    """

    def __init__(self, known: KnownModels, aliases: ModelAliases, usable: UsableModels) -> None:
        self._known = known
        self._aliases = aliases
        self._usable = usable

    async def list_all(self) -> list[ServedModel]:
        """The models of ready groups, those that hosts offer, and their adapters, for any tenant."""
        return self._all(await self._known(""))

    async def list_for(self, identity: Identity) -> list[ServedModel]:
        """Those of `list_all` that a caller may use."""
        served = self._all(await self._known(identity.tenant))
        return [one for one in served if await self._usable.allows(identity, one.card.name)]

    async def find(self, model: str, identity: Identity) -> ServedModel:
        """The model of a name, which may be another name of it, for a caller that may use it.

        Raises:
            ModelNotFound: No group serves it, no host offers it, and none is known.
            Unavailable: Its groups are known and none is ready, or no group of any model is.
        """
        name = await self._aliases.real_name(model)
        known, scope = await self._known(identity.tenant), self._usable.scope_of(identity)
        served = self._all(known)
        named = [one for one in served if one.card.name == name] or [
            one for one in served if name in one.aliases
        ]
        real = named[0].card.name if named else name
        if scope is not None and not scope.allows(real, await self._aliases.base_of(real)):
            raise scope.refusal(model)
        if named:
            return named[0]
        register, base = self._aliases.adapters.register, name.rpartition(":")[0]
        if not register.is_current and base in usable_names(known):
            raise Unavailable(
                f"the adapters of model {base[:128]!r} are not known yet",
                reason="adapters_unknown",
                retry_after_s=1.0,
            )
        error = alias_named(not_served(name, known), model, name, identity.tenant)
        raise scope.hidden(error) if scope is not None and isinstance(error, ModelNotFound) else error

    def _all(self, known: ModelList) -> list[ServedModel]:
        states = {state.card.name: state for state in known.offered}
        ready = [
            ServedModel(card, self._names_of(card.name, state), ready=True, state=state)
            for card in known.models
            for state in [states.pop(card.name, None)]
        ]
        models = ready + [
            ServedModel(state.card, self._names_of(name, state), ready=False, state=state)
            for name, state in sorted(states.items())
        ]
        return models + self._adapters_of(models)

    def _adapters_of(self, models: list[ServedModel]) -> list[ServedModel]:
        names, register = {model.card.name for model in models}, self._aliases.adapters.register
        return [
            ServedModel(
                adapter_card(model.card, adapter),
                self._aliases.names_of(adapter.model),
                model.ready,
                model.state,
                adapter,
            )
            for model in models
            for adapter in register.of_base(model.card.name)
            if adapter.model not in names
        ]

    def _names_of(self, name: str, state: ModelState | None) -> list[str]:
        """The other names of a model: of the setting, then those that its host gives."""
        names = self._aliases.names_of(name)
        return names + [alias for alias in (state.aliases if state else ()) if alias not in names]
