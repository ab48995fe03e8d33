"""Chooses the model that `ryz chat` talks to where none was named. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

_ORDER = ("ready", "loading", "asleep", "draining", "absent", "failed")


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model as `/v1/models` lists it; `phase` is `ready` where no host loads models."""

    name: str
    phase: str = "ready"
    pinned: bool = False

    @property
    def words(self) -> str:
        """Its name, and its state if it does not answer at once."""
        return self.name if self.phase == "ready" else f"{self.name} ({self.phase})"


def by_readiness(models: Sequence[ListedModel]) -> list[ListedModel]:
    """Return the models with the one to choose first: ready ones, of these what is pinned, then the rest."""
    return sorted(models, key=lambda model: (_rank(model.phase), not model.pinned))


def _rank(phase: str) -> int:
    return _ORDER.index(phase) if phase in _ORDER else len(_ORDER)
