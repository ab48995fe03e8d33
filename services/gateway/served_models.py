"""The models that are served now, for the transports that list them."""

from collections.abc import Awaitable, Callable

from services.gateway.answering.intake.model_aliases import ModelAliases, alias_named
from shared.client.calls.model_list import not_served
from shared.messages import ModelCard, ModelList

KnownModels = Callable[[], Awaitable[ModelList]]


class ServedModels:
    """The models.

    Args:
        known: Returns the models that a router knows; raises an error of the family if none answers.
        aliases: Find the models that are meant by other names.
    """

    def __init__(self, known: KnownModels, aliases: ModelAliases) -> None:
        self._known = known
        self._aliases = aliases

    async def list_all(self) -> list[ModelCard]:
        """The models on offer now."""
        return (await self._known()).models

    def aliases_of(self, card: ModelCard) -> list[str]:
        """The other names of a model."""
        return self._aliases.names_of(card.name)

    async def find(self, model: str) -> ModelCard:
        """The model of a name, which may be another name of it.

        Raises:
            ModelNotFound: No group serves it, and none is known.
            Unavailable: Its groups are known and none is ready, or no group of any model is.
        """
        name = await self._aliases.real_name(model)
        known = await self._known()
        for card in known.models:
            if card.name == name:
                return card
        raise alias_named(not_served(name, known), model, name)
