"""The models that can be asked for, ready or not, for the transports that list them."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from services.gateway.answering.intake.model_aliases import ModelAliases, alias_named
from shared.client.calls.model_list import not_served
from shared.messages import ModelCard, ModelList, ModelState

KnownModels = Callable[[str], Awaitable[ModelList]]  # of what a tenant may use; of all, if that is empty


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that can be asked for.

    Attributes:
        aliases: Its other names.
        ready: A group takes requests; else a request waits until a host has loaded the model.
        state: What a router knows of it; None: no host offers it.
    """

    card: ModelCard
    aliases: list[str]
    ready: bool
    state: ModelState | None = None


class ServedModels:
    """The models.

    Args:
        known: Returns the models that a router knows; raises an error of the family if none answers.
        aliases: Find the models that are meant by other names.
    """

    def __init__(self, known: KnownModels, aliases: ModelAliases) -> None:
        self._known = known
        self._aliases = aliases

    async def list_for(self, tenant: str) -> list[ServedModel]:
        """The models that a tenant may use: those of ready groups, then those that hosts offer besides.

        For an empty tenant it is all of them.
        """
        return self._all(await self._known(tenant))

    async def find(self, model: str, tenant: str) -> ServedModel:
        """The model of a name, which may be another name of it, for a tenant that may use it.

        Raises:
            ModelNotFound: No group serves it, no host offers it, and none is known.
            Unavailable: Its groups are known and none is ready, or no group of any model is.
        """
        name = await self._aliases.real_name(model)
        known = await self._known(tenant)
        served = self._all(known)
        for one in served:
            if one.card.name == name:
                return one
        for one in served:
            if name in one.aliases:
                return one
        raise alias_named(not_served(name, known), model, name, tenant)

    def _all(self, known: ModelList) -> list[ServedModel]:
        states = {state.card.name: state for state in known.offered}
        ready = [
            ServedModel(card, self._names_of(card.name, state), ready=True, state=state)
            for card in known.models
            for state in [states.pop(card.name, None)]
        ]
        return ready + [
            ServedModel(state.card, self._names_of(name, state), ready=False, state=state)
            for name, state in sorted(states.items())
        ]

    def _names_of(self, name: str, state: ModelState | None) -> list[str]:
        """The other names of a model: of the setting, then those that its host gives."""
        names = self._aliases.names_of(name)
        return names + [alias for alias in (state.aliases if state else ()) if alias not in names]
