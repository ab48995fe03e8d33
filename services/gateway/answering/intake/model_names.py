"""Which model a name in a call means, and whether the caller may use it.

Other names are those of `RYZ_MODEL_ALIASES`, and `base:name` or the name alone for adapters; a model or an
alias of that name comes first, and the answer names the real one. A name without `*` is always replaced. A
pattern is used only for names that no group has served, so that it never takes a request from a model that
is away for a moment.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from fnmatch import fnmatchcase

from services.gateway.admission.caller import Caller
from services.gateway.admission.identity.identity import Identity, ModelScope
from shared.accounts.register import AccountRegister
from shared.adapters.register import AdapterRegister
from shared.errors import ModelNotFound, RyzError
from shared.messages import ModelList
from shared.messages.base import DEFAULT_TENANT

_SHOWN = 128  # characters of a name in an error
REGISTER_WAIT_S = 5.0  # for the register of adapters, which services read within moments of their start
_POLL_S = 0.05
_REFRESH_S = 1.0  # between two questions for the models that are served


class AdapterNames:
    """Finds adapters by name.

    Args:
        register: The adapters that are known.
        aliases: Models by their other names.
    """

    def __init__(self, register: AdapterRegister, aliases: Mapping[str, str]) -> None:
        self.register = register
        self._aliases = aliases

    def find(self, name: str) -> str | None:
        """The full name of the adapter that a name means if no model has it; None if it means none."""
        if not len(self.register):
            return None
        base, colon, short = name.rpartition(":")
        if not colon:
            adapter = self.register.named(name)
        else:
            adapter = self.register.find(name)
            if adapter is None and base in self._aliases:
                adapter = self.register.find(f"{self._aliases[base]}:{short}")
        return None if adapter is None else adapter.model

    def label_of(self, model: str) -> str:
        """The name under which requests count in metrics: adapters count for their base."""
        if ":" not in model:
            return model
        adapter = self.register.find(model)
        return model if adapter is None else adapter.base


def parse_aliases(text: str) -> dict[str, str]:
    """Reads `name=model,pattern=model` as a map in the order of the entries.

    Raises:
        ValueError: An entry is wrong; names its place.
    """
    aliases: dict[str, str] = {}
    for index, entry in enumerate(filter(None, (part.strip() for part in text.split(","))), start=1):
        name, _, model = (part.strip() for part in entry.partition("="))
        if not name or not model:
            raise ValueError(f"entry {index} needs the form name=model, got {entry[:64]!r}")
        if "*" in model:
            raise ValueError(f"entry {index} needs the name of one model after the '=', got {model[:64]!r}")
        if name in aliases:
            raise ValueError(f"entry {index} repeats the name {name[:64]!r} of an earlier entry")
        aliases[name] = model
    return aliases


class ModelAliases:
    """Finds the real names of models.

    Args:
        aliases: Models by name or pattern.
        list_names: Returns the names of models that are served now, load or are away; raises an error of the
            family if that is not known.
        clock: Returns seconds.
        adapters: Find adapters by name; None: there are none.

    Attributes:
        adapters: As given.
    """

    def __init__(
        self,
        aliases: Mapping[str, str],
        list_names: Callable[[], Awaitable[Iterable[str]]],
        clock: Callable[[], float] = time.monotonic,
        adapters: AdapterNames | None = None,
    ) -> None:
        self.adapters = adapters or no_adapters()
        self._exact = {name: model for name, model in aliases.items() if "*" not in name}
        self._patterns = [(name, model) for name, model in aliases.items() if "*" in name]
        self._list_names = list_names
        self._clock = clock
        self._targets = set(aliases.values())
        self._served = set[str]()  # since the start, as far as routers were asked
        self._asked_at = float("-inf")
        self._unread_since: float | None = None  # when a request first missed the register of adapters
        self._asking = asyncio.Lock()  # calls that come meanwhile wait for the same names

    @property
    def exact(self) -> Mapping[str, str]:
        """Models by the names that are no patterns."""
        return self._exact

    def names_of(self, model: str) -> list[str]:
        """Returns the other names of a model, patterns at the end."""
        pairs = [*self._exact.items(), *self._patterns]
        return [name for name, meant in pairs if meant == model]

    async def real_name(self, name: str) -> str:
        """Returns the name of the model that a request for `name` reaches; `name` if it has no alias.

        Names that no model has wait while the register of adapters is not read, as after the start.
        """
        if (exact := self._exact.get(name)) is not None:
            return exact
        adapter = self.adapters.find(name)
        if adapter is None and not self.adapters.register.is_current:
            adapter = await self._find_when_read(name)
        if adapter is not None:
            # routers prefer a model of the full name themselves
            return adapter if adapter == name or not await self._is_served(name) else name
        if not self._patterns or name in self._targets or name in self._served:
            return name
        found = next((model for pattern, model in self._patterns if fnmatchcase(name, pattern)), None)
        return name if found is None or await self._is_served(name) else found

    async def _find_when_read(self, name: str) -> str | None:
        """Finds an adapter once the register is read; None for a model, and for a name that means none.

        Requests whose name no model has, as a router says, wait until `REGISTER_WAIT_S` after the first of
        them. One that is not found then goes to the routers, which have a register of their own, or to the
        model that a pattern may mean.
        """
        served = await self._ask(name)
        if served is not False:  # without a router the request goes no further
            return None
        register = self.adapters.register
        if self._unread_since is None:
            self._unread_since = self._clock()
        while not register.is_current and self._clock() - self._unread_since < REGISTER_WAIT_S:  # noqa: ASYNC110 (bounded, and rare)
            await asyncio.sleep(_POLL_S)
        if register.is_current:
            self._unread_since = None
        return self.adapters.find(name)

    async def base_of(self, model: str) -> str:
        """Returns the base of an adapter by its full name; any other name as it is."""
        adapter = self.adapters.register.find(model) if ":" in model else None
        return model if adapter is None or await self._is_served(model) else adapter.base

    async def _is_served(self, name: str) -> bool:
        """Whether a model of that name is or was served; True if no router says, and the fleet refuses it."""
        return await self._ask(name) is not False

    async def _ask(self, name: str) -> bool | None:
        """Whether a model of that name is or was served; None: no router says."""
        if name in self._served:
            return True
        async with self._asking:
            if self._clock() - self._asked_at >= _REFRESH_S:
                try:
                    self._served.update(await self._list_names())
                except RyzError:
                    return None
                self._asked_at = self._clock()
        return name in self._served


def alias_named(error: RyzError, asked: str, model: str, tenant: str) -> RyzError:
    """Returns the error of a model that is not served, with the alias by which it was asked for.

    Args:
        asked: The name in the request; empty: it was not read.
        model: The model's real name. Without an alias, and for other errors, the error stays the same.
        tenant: Whose request it is. Where there are several, the model may be for others, and is not named.
    """
    if not asked or asked == model or not isinstance(error, ModelNotFound):
        return error
    if tenant != DEFAULT_TENANT:
        return ModelNotFound(
            error.message.replace(repr(model[:_SHOWN]), repr(asked[:_SHOWN]), 1), **error.data
        )
    meaning = f"{asked[:_SHOWN]!r} means {model[:_SHOWN]!r} here"
    served = error.message.partition("; ")[2]
    return ModelNotFound(f"{meaning}, which no group serves; {served or 'see /v1/models'}", **error.data)


def no_adapters() -> AdapterNames:
    """For gateways without adapters."""
    register = AdapterRegister()
    register.is_current = True
    return AdapterNames(register, {})


async def _no_names() -> Iterable[str]:
    return ()


def no_aliases() -> ModelAliases:
    """For gateways without aliases."""
    return ModelAliases({}, _no_names)


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
        """Checks the model of a call, and notes which other models its caller may learn of.

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
