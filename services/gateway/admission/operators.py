"""Decides who may manage models, tenants and keys: holders of admin keys, or users of this machine."""

from services.gateway.admission.auth import Keyring
from services.gateway.admission.caller import Caller
from services.gateway.admission.errors.refusals import HttpRefusal
from services.gateway.admission.identity.identities import Identities
from services.gateway.admission.identity.identity import Identity
from services.gateway.settings import GatewaySettings
from shared.messages import Scopes
from shared.web.gate import client_of
from shared.web.host_rules import OriginRule, is_loopback
from shared.web.http_limits import is_within, networks

OPERATORS = "operators"  # the tenant of a key of `RYZ_ADMIN_KEYS`, for rates
# a proxy on this machine forwards requests of others: one of these shows it
_FORWARDED = (b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip")
_BY_SETTINGS = Identity(OPERATORS, scopes=Scopes(admin=True))


def actor_of(caller: Caller) -> str:
    """Who makes a change, for the audit log: the id of a stored key, `admin` (RYZ_ADMIN_KEYS) or `local`."""
    if caller.key_id:
        return caller.key_id
    return "admin" if caller.named_tenant == OPERATORS else "local"


class Operators:
    """Admits callers that may manage models, tenants and keys.

    Args:
        keys: `RYZ_ADMIN_KEYS`; empty: callers on this machine may, with their API key where there are any,
            until the register says that keys are required.
        identities: Know the stored keys and the API keys.
        settings: Name the trusted proxies.
    """

    def __init__(self, keys: frozenset[str], identities: Identities, settings: GatewaySettings) -> None:
        self._admins = Keyring(dict.fromkeys(keys, OPERATORS))
        self._identities = identities
        self._proxies = networks(settings.http_trusted_proxies)

    def tenant_of(self, caller: Caller) -> str:
        """Like `identity_of`; also notes in the caller who it is."""
        caller.identity = self.identity_of(caller)
        return caller.identity.tenant

    def identity_of(self, caller: Caller) -> Identity:
        """Who makes a call that manages something.

        Raises:
            HttpRefusal: 401 or 403: the caller may not.
            RateLimited: Its address sent too many wrong keys.
            Unavailable: Its key cannot be looked up.
        """
        given = caller.headers.get(b"authorization", b"")
        scheme, _, key = given.partition(b" ")
        if scheme.lower() == b"bearer" and self._admins.find(key.strip()):
            return _BY_SETTINGS
        if self._identities.is_stored_form(given):
            identity = self._identities.find(given, caller.client)
            if identity.admin:
                return identity
            raise HttpRefusal(
                403, "admin_key_required", "the API key may not manage anything: use an admin key"
            )
        if self._admins.tenants:
            raise self._missing(
                401, "models are managed with a key of RYZ_ADMIN_KEYS, as `Authorization: Bearer <key>`"
            )
        self._identities.check_known()
        if self._identities.register.rules.keys_required:
            raise self._missing(
                401,
                "this needs an admin key, as `Authorization: Bearer <key>`: one that "
                "`ryz keys create --admin` made, or one of RYZ_ADMIN_KEYS",
            )
        self._check_local(caller)
        return self._identities.find(given, caller.client)

    @staticmethod
    def _missing(status: int, message: str) -> HttpRefusal:
        return HttpRefusal(status, "admin_key_required", message, [(b"www-authenticate", b"Bearer")])

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
