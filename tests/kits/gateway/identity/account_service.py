"""The calls about tenants and keys on any bus, with the records in memory."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shared import subjects
from shared.accounts.keys import NewKey, new_key
from shared.bus import Bus, Message
from shared.bus.nats import NatsBus
from shared.codec import decode, encode
from shared.messages import (
    AccountChanged,
    AccountPage,
    AccountQuery,
    AccountRecord,
    AccountRules,
    ErrorReply,
    KeyRecord,
    Scopes,
    StoredAccount,
    TenantRecord,
)

PAGE = 256


class AccountService:
    """Answers as the KV state service does, and publishes changes.

    Attributes:
        away: It cannot read the records.
    """

    def __init__(self, bus: Bus) -> None:
        self.away = False
        self._bus = bus
        self._version = 0
        self._records: dict[str, StoredAccount] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._records

    async def start(self) -> "AccountService":
        await self._bus.subscribe(subjects.ACCOUNTS, self._answer, queue=subjects.KVSTATE_QUEUE)
        return self

    async def put(self, record: AccountRecord, *, end_streams: bool = False) -> None:
        before, self._version = self._version, self._version + 1
        stored = self._records[record.name] = StoredAccount(record=record, revision=self._version)
        await self._publish(
            AccountChanged(before=before, version=self._version, put=stored, end_streams=end_streams)
        )

    async def remove(self, name: str, *, end_streams: bool = False) -> None:
        before, self._version = self._version, self._version + 1
        del self._records[name]
        await self._publish(
            AccountChanged(before=before, version=self._version, removed=name, end_streams=end_streams)
        )

    async def require_keys(self) -> None:
        await self.put(AccountRules(keys_required=True))

    async def add_key(self, tenant: str = "ada", *, expires_s: int = 0, **scopes: object) -> NewKey:
        """Makes a key, with the scopes given by name."""
        made = new_key()
        await self.put(
            KeyRecord(
                key_id=made.key_id,
                tenant=tenant,
                digest=made.digest,
                scopes=Scopes(**scopes),  # type: ignore[arg-type]
                expires_s=expires_s,
            )
        )
        return made

    async def revoke(self, key: NewKey, *, end_streams: bool = False) -> None:
        await self.remove(f"key.{key.key_id}", end_streams=end_streams)

    async def suspend(self, tenant: str, *, suspended: bool = True, end_streams: bool = False) -> None:
        await self.put(TenantRecord(tenant=tenant, suspended=suspended), end_streams=end_streams)

    async def _publish(self, change: AccountChanged) -> None:
        await self._bus.publish(subjects.ACCOUNT_CHANGED, encode(change))
        await self._bus.flush()  # a gateway with the same connection knows of it before the caller goes on

    async def _answer(self, message: Message) -> None:
        if self.away:
            failure = ErrorReply(error="unavailable", message="the stream is away")
            await self._bus.publish(message.reply, encode(failure))
            return
        query = decode(message.data, AccountQuery)
        names = sorted(name for name in self._records if name > query.cursor)
        if query.known and query.known == self._version:
            names = []
        page, rest = names[:PAGE], names[PAGE:]
        found = AccountPage(
            records=[self._records[name] for name in page],
            version=self._version,
            cursor=page[-1] if rest else "",
        )
        await self._bus.publish(message.reply, encode(found))


@asynccontextmanager
async def accounts_on(nats_url: str) -> AsyncIterator[AccountService]:
    """On a connection of its own."""
    bus = await NatsBus.connect(nats_url, name="accounts")
    try:
        yield await AccountService(bus).start()
    finally:
        await bus.close()
