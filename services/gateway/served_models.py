"""The models that are served now, for the transports that list them."""

from collections.abc import Awaitable, Callable

from services.gateway.answering.intake.model_aliases import ModelAliases, alias_named
from shared.client.calls.model_list import no_model_ready
from shared.errors import ModelNotFound
from shared.messages import ModelCard

ListModels = Callable[[], Awaitable[list[ModelCard]]]


class ServedModels:
    """The models.

    Args:
        list_all: Returns the models on offer; raises an error of the family if no router answers.
        aliases: Find the models that are meant by other names.
    """

    def __init__(self, list_all: ListModels, aliases: ModelAliases) -> None:
        self.list_all = list_all
        self._aliases = aliases

    async def find(self, model: str) -> ModelCard:
        """The model of a name, which may be another name of it.

        Raises:
            ModelNotFound: No group serves it.
            Unavailable: No group of any model is ready.
        """
        name = await self._aliases.real_name(model)
        cards = await self.list_all()
        for card in cards:
            if card.name == name:
                return card
        if not cards:
            raise no_model_ready(model)
        unknown = ModelNotFound(f"no group serves the model {model[:128]!r}; see /v1/models", param="model")
        raise alias_named(unknown, model, name)
