"""The address of a broker: URL, inbox of its user, TLS, and the demand that it belongs to this user."""

import ssl
from dataclasses import dataclass

from shared.address import check_address, redact
from shared.bus.accounts import ACCOUNTS, inbox_prefix, user_of
from shared.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """The address of a broker and the demands on it.

    Attributes:
        url: The servers of a cluster, separated by commas.
        inbox: Prefix of inboxes; empty for the one of the URL's user.
        tls: With a context nothing is sent without TLS. None leaves TLS to the URL and the broker.
        local: Whether a broker on a loopback address must be a process of this user or of root; nothing is
            sent to another one.
    """

    url: str
    inbox: str = ""
    tls: ssl.SSLContext | None = None
    local: bool = False

    def __post_init__(self) -> None:
        for url in self.servers:
            check_address(url if "://" in url else f"nats://{url}", "RYZ_NATS_URL")

    @property
    def servers(self) -> list[str]:
        """The URL of each server."""
        return [url.strip() for url in self.url.split(",")]

    @property
    def inbox_prefix(self) -> str:
        """Prefix of all inboxes."""
        return self.inbox or inbox_prefix(user_of(self.url))

    @property
    def needs_tls(self) -> bool:
        """True if a broker without TLS must be refused, since it would be sent the password."""
        return self.tls is not None or self.url.strip().startswith("tls://")


def not_allowed(url: str) -> InvalidRequest:
    """Returns the error when the broker refuses the user or the password in the URL."""
    user = user_of(url)
    problem = f"user {user!r} with this password" if user else "clients without a user and a password"
    ended = ""
    if user and user not in ACCOUNTS:  # a bus user; the broker does not say why
        ended = f". It may have expired, or been suspended or revoked: `ryz keys show {user}` says so"
    return InvalidRequest(
        f"the NATS server at {redact(url)} refuses {problem}: correct RYZ_NATS_URL "
        f"(nats://USER:PASSWORD@HOST:PORT){ended}",
        param="RYZ_NATS_URL",
    )
