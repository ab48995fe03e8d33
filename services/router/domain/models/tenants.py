"""Which tenants may use the models that groups serve, as the groups' leaders say. Pure.

A leader says it with its first heartbeat, and it holds as long as the group is known. So a model of which all
groups are away stays hidden.
"""

from services.router.domain.groups.fleet import Fleet
from shared.messages import ModelCard


class ModelTenants:
    """Remembers the cards of groups whose models are not for all tenants."""

    def __init__(self) -> None:
        self._cards: dict[str, ModelCard] = {}

    def note(self, group: str, card: ModelCard) -> None:
        """A leader of the group was heard for the first time."""
        self._cards.pop(group, None)
        if card.tenants:
            self._cards[group] = card

    def admits(self, model: str, tenant: str, fleet: Fleet) -> bool:
        """Whether all groups of a model that are known let a tenant use it."""
        if not self._cards:
            return True
        for group in [group for group in self._cards if fleet.find(group) is None]:
            del self._cards[group]
        return all(card.admits(tenant) for card in self._cards.values() if card.name == model)
