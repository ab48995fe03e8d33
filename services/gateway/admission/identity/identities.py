"""Finds who makes a call: by a key of `RYZ_API_KEYS`, by a stored key, by a token, or without any.

The register of tenants and keys changes while the gateway runs, so nothing of it is kept here.
"""

import hmac
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from services.gateway.admission.auth import Keyring, given_key
from services.gateway.admission.errors.refusals import KEY_ASKED, HttpRefusal
from services.gateway.admission.identity.account_copy import AccountCopy
from services.gateway.admission.identity.guesses import KeyGuesses
from services.gateway.admission.identity.identity import ANYONE, Identity, identity_of
from services.gateway.admission.request_headers import RawHeaders
from shared.accounts.keys import digest_of, key_id_of
from shared.accounts.register import AccountRegister
from shared.messages import KeyRecord, Scopes

_NO_DIGEST = bytes(32)  # compared where there is no record, so that the time does not tell which ids exist


class IdentityTokens(Protocol):
    """Reads tokens of an identity provider."""

    def reads(self, key: str) -> bool:
        """Returns whether a text has the form of a token."""

    def identity(self, token: str, now_s: float) -> Identity:
        """Who is meant; raises an `HttpRefusal` of 401, or `Unavailable` without the provider's keys."""


class Identities:
    """Finds who makes a call.

    Args:
        keyring: The keys of `RYZ_API_KEYS`.
        accounts: The copy of tenants and keys.
        guesses: Slows addresses with wrong keys.
        tokens: Reads tokens; None: none are valid.
        now: Seconds since 1970.
        may_be_open: False: requests without a key are refused, whatever the register says, since other
            machines reach the API, and no setting allows that without keys.
    """

    def __init__(
        self,
        keyring: Keyring,
        accounts: AccountCopy,
        guesses: KeyGuesses | None = None,
        tokens: IdentityTokens | None = None,
        now: Callable[[], float] = time.time,
        *,
        may_be_open: bool = True,
    ) -> None:
        self._keyring = keyring
        self._accounts = accounts
        self._guesses = KeyGuesses() if guesses is None else guesses
        self._tokens = tokens
        self._now = now
        self._may_be_open = may_be_open

    @property
    def register(self) -> AccountRegister:
        """The tenants and keys as far as they are known."""
        return self._accounts.register

    @property
    def is_open(self) -> bool:
        """Returns whether requests need no key. False while that is not known.

        Of stored keys the rule alone decides, which is set before the first of them is stored.
        """
        required = self._accounts.register.rules.keys_required
        return self._may_be_open and not self._has_own and self._accounts.was_read and not required

    @property
    def is_known(self) -> bool:
        """Returns whether it is known if requests need a key."""
        return self._has_own or self._accounts.was_read

    @property
    def has_several_tenants(self) -> bool:
        """Returns whether keys may be of more than one tenant."""
        own, stored = self._keyring.tenants, self._accounts.register.key_tenants
        if self._tokens is not None or len(own) > 1 or len(stored) > 1:
            return True
        return bool(own and stored) and own != stored.keys()

    @property
    def _has_own(self) -> bool:
        """Whether settings ask for keys or tokens, whatever the register says."""
        return bool(self._keyring.tenants) or self._tokens is not None

    def check_known(self) -> None:
        """Raises `Unavailable` while it is not known whether requests need a key."""
        if not self.is_known:
            raise self._accounts.away()

    def of_headers(self, headers: RawHeaders, route: str, client: Sequence[object] | None = None) -> Identity:
        """Who makes a call with these headers; see `given_key` and `find`."""
        return self.find(given_key(headers, route), client)

    def find(self, authorization: bytes, client: Sequence[object] | None = None) -> Identity:
        """Who an `Authorization` header stands for.

        Args:
            authorization: The value of the header; empty: there is none.
            client: Address and port of the caller, whose wrong keys are counted; None: they are not, since
                the call is checked again.

        Raises:
            HttpRefusal: 401: the key is missing, not known or has expired; 403: its tenant is suspended.
            RateLimited: The address sent too many wrong keys.
            Unavailable: The key cannot be looked up now.
        """
        key = bearer_of(authorization)
        if not key:
            if self.is_open:
                return self._checked(ANYONE)
            self.check_known()
            if not (self._may_be_open or self._has_own or self._accounts.register.rules.keys_required):
                raise _refuse(
                    "missing_api_key",
                    "other machines reach this API, so it takes no request without a key: its operator makes "
                    "one with `ryz keys create`, or sets RYZ_OPEN_TO_NETWORK=true if it is to be open",
                )
            raise _refuse(
                "missing_api_key",
                "send your API key as `Authorization: Bearer <key>`, or on Anthropic's routes as `x-api-key`",
            )
        digest = digest_of(key)
        if client is None:
            return self._checked(self._identify(key, digest))
        self._guesses.check(client, digest)
        try:
            identity = self._identify(key, digest)
        except HttpRefusal as refusal:
            self._guesses.note_refused(client, digest, refusal.code)
            raise
        if identity is not ANYONE:
            self._guesses.note_right(client, digest)
        return self._checked(identity)

    def is_stored_form(self, authorization: bytes) -> bool:
        """Returns whether an `Authorization` header has a key of the form of stored ones, or a token."""
        key = bearer_of(authorization)
        return key_id_of(key) is not None or (self._tokens is not None and self._tokens.reads(key))

    def renewed(self, identity: Identity) -> Identity:
        """Who an identity is now that was found a while ago, by a connection that stays open.

        Raises:
            HttpRefusal: 401: the key is gone or has expired, or one is needed now; 403 as in `find`.
            Unavailable: The copy is too old.
        """
        if identity.key is not None:
            return self._checked(self._stored(identity.key.key_id, identity.key.digest))
        if identity.expires_s and self._now() >= identity.expires_s:
            raise _refuse("key_expired", "the token has expired; connect again with a new one")
        if identity is ANYONE and not self.is_open:
            raise _refuse("missing_api_key", "the API needs a key now; connect again with one")
        return self._checked(identity)

    def of_key(self, key_id: str, tenant: str, scopes: Scopes) -> Identity:
        """Who asked for work that runs later: a batch.

        Args:
            key_id: The stored key; empty: it had none.
            tenant: The tenant without one.
            scopes: What it may be used for without one.

        Raises:
            HttpRefusal: See `renewed`.
            Unavailable: See `renewed`; also while the copy may lack the key.
        """
        if not key_id:
            return self._checked(Identity(tenant, scopes=scopes))
        return self._checked(self._stored(key_id, None))

    def named(self, tenant: str) -> Identity:
        """A service that a trusted transport vouches for; raises an `HttpRefusal` if it is suspended."""
        return self._checked(Identity(tenant))

    def _identify(self, key: str, digest: bytes) -> Identity:
        key_id = key_id_of(key)
        if key_id is not None:
            record = self._accounts.register.key(key_id)
            known = hmac.compare_digest(_NO_DIGEST if record is None else record.digest, digest)
            if record is not None and known:
                return self._usable(record)
        tenant = self._keyring.find(key.encode("latin-1"))
        if tenant:
            return Identity(tenant)
        if self._tokens is not None and self._tokens.reads(key):
            return self._tokens.identity(key, self._now())
        if key_id is not None:
            if not self._accounts.is_sure:
                raise self._accounts.away()
        elif self.is_open:
            return ANYONE  # clients send a key of their own where none is needed
        else:
            self.check_known()
        raise _refuse("invalid_api_key", "the API key is not known here")

    def _stored(self, key_id: str, digest: bytes | None) -> Identity:
        """The holder of a stored key that was valid a while ago; with `digest`, of the same key."""
        record = self._accounts.register.key(key_id)
        if record is None or (digest is not None and not hmac.compare_digest(record.digest, digest)):
            if not self._accounts.is_sure:
                raise self._accounts.away()
            raise _refuse("key_revoked", "the API key was revoked")
        return self._usable(record)

    def _usable(self, record: KeyRecord) -> Identity:
        if not self._accounts.is_usable:
            raise self._accounts.away()
        if record.expires_s and self._now() >= record.expires_s:
            raise _refuse("key_expired", "the API key has expired")
        return identity_of(record)

    def _checked(self, identity: Identity) -> Identity:
        tenant = self._accounts.register.tenant(identity.tenant)
        if tenant is not None and tenant.suspended:
            raise HttpRefusal(403, "tenant_suspended", f"the tenant {identity.tenant!r} is suspended")
        return identity


def bearer_of(authorization: bytes) -> str:
    """The key or token in the value of an `Authorization` header; empty if it has none."""
    scheme, _, given = authorization.partition(b" ")
    return given.strip().decode("latin-1") if scheme.lower() == b"bearer" else ""


def _refuse(code: str, message: str) -> HttpRefusal:
    return HttpRefusal(401, code, message, KEY_ASKED)
