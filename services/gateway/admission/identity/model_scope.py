"""Which models a caller may use: those of its key and of its tenant. Pure.

A forbidden model is answered like one that is not known. The name of a base stands for its adapters as well.
"""

from collections.abc import Mapping, Sequence

from services.gateway.admission.identity.identity import Identity
from shared.accounts.register import AccountRegister
from shared.errors import ModelNotFound


class ModelScope:
    """The models of one caller.

    Args:
        identity: Of the caller.
        register: Has its tenant's models.
        aliases: Models by other names, by which lists may name them.
    """

    def __init__(self, identity: Identity, register: AccountRegister, aliases: Mapping[str, str]) -> None:
        tenant = register.tenant(identity.tenant)
        lists: list[Sequence[str]] = [identity.scopes.models]
        if tenant is not None:
            lists.append(tenant.models)
        self._allowed = [{aliases.get(name, name) for name in names} for names in lists if names]

    @property
    def has_all(self) -> bool:
        """Returns whether it is not limited to some models."""
        return not self._allowed

    def allows(self, model: str, base: str) -> bool:
        """Returns whether the caller may use a model.

        Args:
            model: Its real name.
            base: That of its base, if it is an adapter, or the same name.
        """
        return all(model in names or base in names for names in self._allowed)

    def hidden(self, error: ModelNotFound) -> ModelNotFound:
        """The error without the names of the models that others may use."""
        if self.has_all:
            return error
        return ModelNotFound(f"{error.message.partition('; ')[0]}; see /v1/models", **error.data)

    def refusal(self, model: str) -> ModelNotFound:
        """The error for a model that the caller may not use, by the name in its call."""
        return self.hidden(ModelNotFound(f"no group serves model {model[:128]!r}; ", param="model"))
