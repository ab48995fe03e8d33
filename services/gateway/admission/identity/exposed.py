"""Whether other machines reach an API for which no setting asks for keys, and whether it may start then."""

import structlog

from services.gateway.admission.identity.account_copy import AccountCopy
from services.gateway.settings import GatewaySettings
from shared.errors import InvalidRequest
from shared.host.open_network import open_network

log = structlog.get_logger(__name__)


def exposed_by(settings: GatewaySettings, keys: dict[str, str]) -> str:
    """The setting by which other machines reach the API while no setting asks for keys.

    Empty: there is none, or it is meant (`RYZ_OPEN_TO_NETWORK`). Else stored keys have to be required.
    """
    variable = "RYZ_HTTP_PUBLISHED" if settings.http_published else "RYZ_HTTP_HOST"
    addresses = {variable: settings.http_published or settings.http_host}
    if settings.grpc_port and settings.grpc_host:
        addresses["RYZ_GRPC_HOST"] = settings.grpc_host
    for name, reached_at in addresses.items():
        if not settings.open_to_network and open_network(reached_at, bool(keys or settings.oidc_issuer)):
            return f"{name}={reached_at}"
    return ""


def check_exposed(exposed: str, copy: AccountCopy) -> None:
    """Raises `InvalidRequest` if the API would be open to other machines; says what holds if it is closed."""
    if copy.register.rules.keys_required:
        log.info("other machines reach the API; requests need a stored key", setting=exposed)
        return
    if copy.was_read:
        raise InvalidRequest(
            f"{exposed} without API keys would serve every machine that reaches this one: set RYZ_API_KEYS, "
            "or start for this machine alone, make a key (`ryz keys create --tenant NAME`) and start again, "
            "or set RYZ_OPEN_TO_NETWORK=true if that is meant"
        )
    log.warning(
        "other machines reach the API, and whether requests need a key is not known: all are refused",
        setting=exposed,
        remedy="start the KV state service and its broker; or set RYZ_API_KEYS",
    )
