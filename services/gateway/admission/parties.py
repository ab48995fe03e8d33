"""Decides for whom a request counts where callers share something: its tenant or, without keys, its address.

Without API keys every caller is of the tenant `default`, so shares of tenants would protect none of them from
another. Keys are made and revoked while the gateway runs, and shares follow. Callers behind a proxy have one
address; those of `RYZ_HTTP_TRUSTED_PROXIES` count together, without a share, and the proxy has to limit them.
"""

from collections.abc import Sequence

from services.gateway.admission.identity.identities import Identities
from services.gateway.admission.quota import Quota
from services.gateway.settings import GatewaySettings
from shared.web.gate import client_of
from shared.web.http_limits import Networks, is_within, networks

# Without keys, what one address may have of everything that callers share. The rest is enough for others to
# find room at once, and little enough for a machine's only user not to miss it.
ADDRESS_SHARE = 0.875
UNSHARED = ""  # a party that may have everything


class Parties:
    """Finds the party of each request.

    Args:
        identities: Know whether keys are needed, and whether they are of several tenants.
        settings: Name the trusted proxies and the share of a tenant.

    Attributes:
        share: The part of something that one party may have.
    """

    def __init__(self, identities: Identities, settings: GatewaySettings) -> None:
        self.share = 1.0
        self._identities = identities
        self._tenant_share = settings.tenant_share
        self._max_bodies = settings.constants.max_bodies
        self._trusted = networks(settings.http_trusted_proxies)
        self._quotas: list[tuple[Quota, float]] = []
        self._by_address = False
        self._several = False
        self._is_set = False
        self._follow_keys()

    def quota(self, limit: int, *, what: str, reason: str, address_share: float = ADDRESS_SHARE) -> Quota:
        """A quota of which a party may have its share, which changes with the keys; see `Quota`.

        Args:
            limit: How many units there are.
            what: The units in words.
            reason: Of a refusal.
            address_share: The share of an address where no keys are needed.
        """
        made = Quota(limit, share=1.0, what=what, reason=reason)
        self._quotas.append((made, address_share))
        self._set_share(made, address_share)
        return made

    def body_quota(self) -> Quota:
        """The quota of bodies on their way."""
        return self.quota(
            self._max_bodies,
            what="bodies on their way",
            reason="gateway_bodies",
            address_share=self._tenant_share,
        )

    def _follow_keys(self) -> None:
        """Sets the shares that follow from the keys which there are now."""
        identities = self._identities
        by_address = identities.is_open or not identities.is_known
        several = identities.has_several_tenants
        if by_address == self._by_address and several == self._several and self._is_set:
            return
        self._by_address, self._several, self._is_set = by_address, several, True
        self.share = self._share(ADDRESS_SHARE)
        for quota, address_share in self._quotas:
            self._set_share(quota, address_share)

    def _share(self, address_share: float) -> float:
        if self._by_address:
            return address_share
        return self._tenant_share if self._several else 1.0

    def _set_share(self, quota: Quota, address_share: float) -> None:
        by_proxies = self._by_address and address_share == ADDRESS_SHARE
        setting = "RYZ_HTTP_TRUSTED_PROXIES" if by_proxies else "RYZ_TENANT_SHARE"
        quota.set_share(self._share(address_share), setting)

    def party_of(self, tenant: str, client: Sequence[object] | None) -> str:
        """The party of a request.

        Args:
            tenant: Whose request it is.
            client: Address and port of the caller; None or an empty address if it has none.
        """
        self._follow_keys()
        return self.address_party(client) if self._by_address else tenant

    def address_party(self, client: Sequence[object] | None) -> str:
        """The party of a caller whose tenant is not known; `UNSHARED` without an address or for a proxy."""
        return party_of_address(client, self._trusted)


def party_of_address(client: Sequence[object] | None, trusted: Networks) -> str:
    """The party of a caller by its address alone; `UNSHARED` without one, and for a trusted proxy."""
    address = str(client[0]) if client else ""
    if not address or (trusted and is_within(address, trusted)):
        return UNSHARED
    return f"address {client_of(address)}"
