"""Decides for whom a request counts where callers share something: its tenant or, without keys, its address.

Without API keys every caller is of the tenant `default`, so shares of tenants would protect none of them from
another. Callers behind a proxy have one address; those of `RYZ_HTTP_TRUSTED_PROXIES` count together, without
a share, and the proxy has to limit them.
"""

from collections.abc import Sequence

from services.gateway.admission.auth import Keyring
from services.gateway.admission.quota import Quota
from services.gateway.settings import GatewaySettings
from shared.web.gate import client_of
from shared.web.http_limits import is_within, networks

# Without keys, what one address may have of everything that callers share. The rest is enough for others to
# find room at once, and little enough for a machine's only user not to miss it.
ADDRESS_SHARE = 0.875
UNSHARED = ""  # a party that may have everything


class Parties:
    """Finds the party of each request.

    Args:
        keyring: Knows whether there are keys, and of how many tenants.
        settings: Name the trusted proxies and the share of a tenant.

    Attributes:
        share: The part of something that one party may have.
    """

    def __init__(self, keyring: Keyring, settings: GatewaySettings) -> None:
        self._by_address = keyring.is_open
        self._trusted = networks(settings.http_trusted_proxies)
        if keyring.is_open:
            self.share, self._setting = ADDRESS_SHARE, "RYZ_HTTP_TRUSTED_PROXIES"
        else:
            self.share = settings.tenant_share if keyring.num_tenants > 1 else 1.0
            self._setting = "RYZ_TENANT_SHARE"

    def quota(self, limit: int, *, what: str, reason: str) -> Quota:
        """A quota of which a party may have its share; see `Quota`."""
        return Quota(limit, share=self.share, what=what, reason=reason, setting=self._setting)

    def party_of(self, tenant: str, client: Sequence[object] | None) -> str:
        """The party of a request.

        Args:
            tenant: Whose request it is.
            client: Address and port of the caller; None or an empty address if it has none.
        """
        return self.address_party(client) if self._by_address else tenant

    def address_party(self, client: Sequence[object] | None) -> str:
        """The party of a caller whose tenant is not known; `UNSHARED` without an address or for a proxy."""
        address = str(client[0]) if client else ""
        if not address or (self._trusted and is_within(address, self._trusted)):
            return UNSHARED
        return f"address {client_of(address)}"
