"""Who makes a call and what its key allows: APIs, changes and models. Pure.

A forbidden model is answered like one that is not known. The name of a base stands for its adapters as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from services.gateway.admission.errors.refusals import HttpRefusal
from shared.accounts.register import AccountRegister
from shared.errors import ModelNotFound
from shared.messages import KeyRecord, Scopes
from shared.messages.base import DEFAULT_TENANT

UNRESTRICTED = Scopes()
STREAMS = "/v1/streams"  # of any API: checked when the stream is found
_APIS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
    "/v1/embeddings": "embeddings",
    "/tokenize": "tokens",
    "/detokenize": "tokens",
    "/v1/sessions": "sessions",
    "/v1/files": "files",
    "/v1/batches": "batches",
    "/v1/models": "models",
}
_READING = frozenset({"GET", "HEAD"})
_COMPUTING = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/embeddings",
        "/v1/batches",
    }
)
_COMPUTES_NOTHING = frozenset({"/tokenize", "/detokenize", "/v1/messages/count_tokens"})


@dataclass(frozen=True, slots=True)
class Identity:
    """Who makes a call.

    Attributes:
        tenant: Whose call it is.
        key: The stored key; None: a key of `RYZ_API_KEYS`, a token, a service on the bus, or none.
        scopes: What it may be used for.
        expires_s: Of a token: when it ends, in seconds since 1970; 0: it is none.
    """

    tenant: str
    key: KeyRecord | None = None
    scopes: Scopes = field(default=UNRESTRICTED)
    expires_s: float = 0.0

    @property
    def key_id(self) -> str:
        """The id of the stored key; empty: it has none."""
        return "" if self.key is None else self.key.key_id

    @property
    def admin(self) -> bool:
        """Returns whether it manages models, tenants and keys."""
        return self.scopes.admin


ANYONE = Identity(DEFAULT_TENANT)  # every caller of an open gateway


def identity_of(key: KeyRecord) -> Identity:
    """The identity of the holder of a stored key."""
    return Identity(key.tenant, key, key.scopes)


def api_of(route: str) -> str:
    """The API of a route, also of one below it; empty: it belongs to none."""
    found = _APIS.get(route)
    while found is None and "/" in route[1:]:
        route = route.rpartition("/")[0]
        found = _APIS.get(route)
    return found or ""


def spends_tokens(route: str, method: str) -> bool:
    """Returns whether a call may spend tokens: none that reads, counts, changes or cancels does.

    Those work also when the tokens or the money of a tenant are used up.
    """
    return method == "POST" and route in _COMPUTING


def check_scopes(identity: Identity, route: str, method: str) -> None:
    """Checks whether a call is within what its key may be used for.

    Args:
        identity: What the key says of its caller.
        route: The path of the call, which names the API over every transport.
        method: The HTTP method.

    Raises:
        HttpRefusal: It is not; says what the key may be used for.
    """
    scopes = identity.scopes
    if scopes.read_only and not _reads(route, method):
        raise HttpRefusal(403, "read_only_key", "the API key may read, and not generate or change anything")
    if scopes.apis:
        check_api(identity, api_of(route))


def check_api(identity: Identity, api: str) -> None:
    """Raises an `HttpRefusal` of 403 if the key is for other APIs; an empty name is that of none."""
    apis = identity.scopes.apis
    if apis and api and api not in apis:
        raise HttpRefusal(
            403, "api_not_allowed", f"the API key may not use the API {api!r}; it may use: {', '.join(apis)}"
        )


def _reads(route: str, method: str) -> bool:
    """Returns whether a call changes nothing; who resumes a stream takes it from its reader."""
    if method in _READING:
        return route != STREAMS
    return route in _COMPUTES_NOTHING


class ModelScope:
    """The models of one caller.

    Args:
        identity: The caller.
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
