"""What a key may be used for: which APIs, and whether it may change anything. Pure.

Which models it may use is decided where their names are resolved: `model_scope.py`.
"""

from services.gateway.admission.errors.refusals import HttpRefusal
from services.gateway.admission.identity.identity import Identity

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
        identity: Of the key.
        route: Of the call; it names the API, over every transport.
        method: Of HTTP.

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
