"""Identities over a register that a test fills by hand."""

from dataclasses import dataclass, field

from services.gateway.admission.auth import Keyring
from services.gateway.admission.identity.account_copy import AccountCopy
from services.gateway.admission.identity.guesses import KeyGuesses
from services.gateway.admission.identity.identities import Identities, IdentityTokens
from shared.accounts.keys import NewKey, new_key
from shared.accounts.register import AccountRegister
from shared.messages import (
    AccountChanged,
    AccountRecord,
    AccountRules,
    KeyRecord,
    Scopes,
    StoredAccount,
    TenantRecord,
)


@dataclass
class Accounts:
    """A register, when it was read, and the time."""

    register: AccountRegister = field(default_factory=AccountRegister)
    read_at: float = 0.0
    now_s: float = 0.0  # of the monotonic clock
    epoch_s: float = 1_000_000.0
    refused: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.register.replace_all([], 1)

    def identities(
        self, keys: dict[str, str] | None = None, tokens: IdentityTokens | None = None
    ) -> Identities:
        copy = AccountCopy(self.register, lambda: self.read_at, lambda: self.now_s)
        guesses = KeyGuesses(
            lambda client: f"address {client[0]}" if client and client[0] else "",
            self.refused.append,
            lambda: self.now_s,
        )
        return Identities(Keyring(keys or {}), copy, guesses, tokens, lambda: self.epoch_s)

    def put(self, record: AccountRecord) -> None:
        before = self.register.version
        stored = StoredAccount(record=record, revision=before + 1)
        self.register.apply(AccountChanged(before=before, version=before + 1, put=stored))

    def remove(self, name: str) -> None:
        before = self.register.version
        self.register.apply(AccountChanged(before=before, version=before + 1, removed=name))

    def add_key(self, tenant: str = "ada", *, expires_s: int = 0, **scopes: object) -> NewKey:
        made = new_key()
        given = Scopes(**scopes)  # type: ignore[arg-type]
        self.put(
            KeyRecord(
                key_id=made.key_id, tenant=tenant, digest=made.digest, scopes=given, expires_s=expires_s
            )
        )
        return made

    def revoke(self, key: NewKey) -> None:
        self.remove(f"key.{key.key_id}")

    def suspend(self, tenant: str) -> None:
        self.put(TenantRecord(tenant=tenant, suspended=True))

    def require_keys(self) -> None:
        self.put(AccountRules(keys_required=True))


def identities(keys: dict[str, str] | None = None) -> Identities:
    """With keys of the settings only."""
    return Accounts().identities(keys)
