"""Makes what finds who makes calls, and keeps it in step with the register of tenants and keys."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from services.gateway.admission.auth import Keyring
from services.gateway.admission.identity.account_copy import AccountCopy
from services.gateway.admission.identity.exposed import check_exposed, exposed_by
from services.gateway.admission.identity.guesses import KeyGuesses
from services.gateway.admission.identity.identities import Identities, IdentityTokens
from services.gateway.admission.identity.oidc_claims import parse_claims
from services.gateway.admission.parties import party_of_address
from services.gateway.metrics import GatewayMetrics
from services.gateway.settings import GatewaySettings
from shared.accounts.register import AccountRegister
from shared.bus import Bus
from shared.client.calls.accounts_sync import AccountsSync
from shared.messages import AccountChanged
from shared.web.http_limits import networks

Hear = Callable[[AccountChanged], None]


class AccountNews:
    """Passes changes of the register on, once the copy has them."""

    def __init__(self) -> None:
        self._hearers: list[Hear] = []

    def follow(self, hear: Hear) -> None:
        """Has a function called with each change."""
        self._hearers.append(hear)

    def pass_on(self, change: AccountChanged) -> None:
        """Called with a change."""
        for hear in self._hearers:
            hear(change)


async def open_identities(
    settings: GatewaySettings,
    keys: dict[str, str],
    bus: Bus,
    stack: AsyncExitStack,
    metrics: GatewayMetrics,
) -> tuple[Identities, AccountNews]:
    """The identities of a gateway, whose copy of the register is kept until the stack closes.

    Args:
        settings: Name the trusted proxies.
        keys: Tenants by the keys of `RYZ_API_KEYS`.
        bus: The broker.
        stack: Closes what is opened here.
        metrics: Count refused keys, and tell the age of the copy.

    Raises:
        InvalidRequest: The register says that requests need no key either, so the API would be open to them.
    """
    loop, trusted, news = asyncio.get_running_loop(), networks(settings.http_trusted_proxies), AccountNews()
    accounts = AccountsSync(bus, AccountRegister(), on_applied=news.pass_on)
    await accounts.listen()
    await accounts.read()
    copy = AccountCopy(accounts.register, lambda: accounts.last_read_at, loop.time)
    exposed = exposed_by(settings, keys)
    if exposed:
        check_exposed(exposed, copy)
    keeping = asyncio.create_task(accounts.keep())
    stack.callback(keeping.cancel)
    began_at = loop.time()
    metrics.accounts_age.set_function(lambda: loop.time() - max(began_at, accounts.last_read_at))

    def address_of(client: Sequence[object] | None) -> str:
        return party_of_address(client, trusted)

    tokens = await _open_tokens(settings, stack) if settings.oidc_issuer else None
    guesses = KeyGuesses(address_of, metrics.count_refused_key)
    return Identities(Keyring(keys), copy, guesses, tokens, may_be_open=not exposed), news


async def _open_tokens(settings: GatewaySettings, stack: AsyncExitStack) -> IdentityTokens:
    """Reads tokens of the provider; its keys are fetched now, and while the gateway runs."""
    from services.gateway.admission.identity.oidc_keys import SigningKeys  # noqa: PLC0415 (an extra)
    from services.gateway.admission.identity.oidc_tokens import OidcTokens  # noqa: PLC0415

    keys = SigningKeys(settings.oidc_issuer)
    await keys.refresh()
    keeping = asyncio.create_task(keys.keep())
    stack.callback(keeping.cancel)
    claims = parse_claims(settings.oidc_claims)
    return OidcTokens(settings.oidc_issuer, settings.oidc_audience, claims, keys)
