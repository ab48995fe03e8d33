"""Decides who may manage models: holders of a key for operators; without such keys, users of this machine."""

from services.gateway.admission.auth import Keyring
from services.gateway.admission.caller import Caller
from services.gateway.admission.errors.refusals import HttpRefusal
from services.gateway.settings import GatewaySettings
from shared.web.gate import client_of
from shared.web.host_rules import OriginRule, is_loopback
from shared.web.http_limits import is_within, networks

OPERATORS = "operators"  # the tenant of a key for operators, for rates
# a proxy on this machine forwards requests of others: one of these shows it
_FORWARDED = (b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip")


class Operators:
    """Admits callers that may manage models.

    Args:
        keys: `RYZ_ADMIN_KEYS`; empty: callers on this machine may, with their API key where there are any.
        keyring: The API keys.
        settings: Name the trusted proxies.
    """

    def __init__(self, keys: frozenset[str], keyring: Keyring, settings: GatewaySettings) -> None:
        self._admins = Keyring(dict.fromkeys(keys, OPERATORS))
        self._keyring = keyring
        self._proxies = networks(settings.http_trusted_proxies)

    def tenant_of(self, caller: Caller) -> str:
        """The tenant for whom the call counts; raises an `HttpRefusal` of 401 or 403 if it may not manage."""
        if self._admins.is_open:
            self._check_local(caller)
            return self._keyring.tenant_of(caller.headers, caller.route)
        try:
            return self._admins.tenant(caller.headers.get(b"authorization", b""))
        except HttpRefusal as refusal:
            message = "models are managed with a key of RYZ_ADMIN_KEYS, as `Authorization: Bearer <key>`"
            raise HttpRefusal(401, "admin_key_required", message, refusal.headers) from None

    def _check_local(self, caller: Caller) -> None:
        address = str(caller.client[0]) if caller.client else ""
        forwarded = any(name in caller.headers for name in _FORWARDED) or is_within(address, self._proxies)
        if _is_this_machine(address) and not forwarded:
            self._check_page(caller)
            return
        raise HttpRefusal(
            403,
            "admin_key_required",
            "without RYZ_ADMIN_KEYS models are managed from this machine only, not through a proxy: set "
            "RYZ_ADMIN_KEYS and send one of them as `Authorization: Bearer <key>`",
        )

    @staticmethod
    def _check_page(caller: Caller) -> None:
        """Refuses pages of other sites, also those that may use the rest of the API."""
        headers = caller.headers
        origin, site = headers.get(b"origin", b""), headers.get(b"sec-fetch-site", b"")
        own = OriginRule(frozenset(), has_keys=False)
        if (origin or site) and not own.allows(origin, site, headers.get(b"host", b""), brings_key=False):
            raise HttpRefusal(
                403,
                "origin_not_allowed",
                "pages of other sites manage models only with a key of RYZ_ADMIN_KEYS",
            )


def _is_this_machine(address: str) -> bool:
    mapped = "." in address  # an IPv4 address, also in the form `::ffff:127.0.0.1`
    return bool(address) and is_loopback(client_of(address) if mapped else address)
