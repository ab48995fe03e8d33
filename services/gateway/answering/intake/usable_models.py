"""Whether a caller may use the model that its call asks for, and what it is told of others."""

from collections.abc import Awaitable, Callable

from services.gateway.admission.caller import Caller
from services.gateway.admission.identity.identity import Identity
from services.gateway.admission.identity.model_scope import ModelScope
from services.gateway.answering.intake.model_aliases import ModelAliases, alias_named
from shared.accounts.register import AccountRegister
from shared.errors import ModelNotFound, RyzError
from shared.messages import ModelList


class UsableModels:
    """Finds what callers may use.

    Args:
        register: Has the models of tenants.
        aliases: Other names of models, and adapters.
        known: Returns what a tenant may use as routers know it, with the names that hosts give; raises an
            error of the family if none answers.
    """

    def __init__(
        self,
        register: AccountRegister,
        aliases: ModelAliases,
        known: Callable[[str], Awaitable[ModelList]],
    ) -> None:
        self._register = register
        self._aliases = aliases
        self._known = known

    def scope_of(self, identity: Identity) -> ModelScope | None:
        """The models that a caller may use; None: all."""
        tenant = self._register.tenant(identity.tenant)
        if not identity.scopes.models and (tenant is None or not tenant.models):
            return None
        return ModelScope(identity, self._register, self._aliases.exact)

    async def allows(self, identity: Identity, model: str) -> bool:
        """Returns whether a caller may use a model, by its real name."""
        scope = self.scope_of(identity)
        return scope is None or scope.allows(model, await self._aliases.base_of(model))

    async def check(self, caller: Caller, real: str, asked: str) -> None:
        """Checks the model of a call, and notes what may be told of others.

        Args:
            caller: Was admitted.
            real: The name of the model.
            asked: Its name in the call.

        Raises:
            ModelNotFound: The caller may not use it.
        """
        assert caller.identity is not None
        scope = caller.models = self.scope_of(caller.identity)
        if scope is None or scope.allows(real, await self._aliases.base_of(real)):
            return
        offered = (await self._known(caller.tenant)).offered
        meant = next((state.card.name for state in offered if real in state.aliases), "")
        if not meant or not scope.allows(meant, meant):
            raise scope.refusal(asked)


def told_error(error: RyzError, caller: Caller) -> RyzError:
    """The error of a model that is not served, without names that the caller may not know."""
    error = alias_named(error, caller.asked_model, caller.model, caller.tenant)
    if caller.models is not None and isinstance(error, ModelNotFound):
        return caller.models.hidden(error)
    return error
