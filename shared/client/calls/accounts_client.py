"""Reads and changes tenants, keys and prices by calls to the KV state service.

What a change consists of is decided here for the command line and for HTTP alike: a key or the password
of a bus user is drawn here, and its digest or hash is all that is sent.
"""

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from msgspec.structs import replace

from shared import subjects
from shared.accounts.bus_users import with_password_hash
from shared.accounts.keys import digest_of, key_id_in, key_id_of, new_key, shown_prefix
from shared.accounts.register import AccountRegister
from shared.bus import Bus, NoResponders
from shared.bus.endpoint import call
from shared.bus.passwords import hash_password, new_password
from shared.bus.users import BusUser
from shared.client.calls.accounts_sync import read_accounts
from shared.errors import AccountNotFound, Conflict, InvalidRequest, Unavailable
from shared.messages import (
    AccountChange,
    AccountRecord,
    AccountRules,
    AccountStored,
    AuditEntry,
    AuditPage,
    AuditQuery,
    BusUserTerms,
    KeyRecord,
    StoredAccount,
    TenantRecord,
)
from shared.messages.tenants.accounts import ACCOUNTS_EMPTIED, ANY_REVISION

OVERLAP_S = 3600  # of a rotation
ANSWER_S = 10.0  # a change is written to the broker's disk, and read back
SERVICE_WAIT_S = 2.0  # of a service that is just restarting


@dataclass(frozen=True, slots=True)
class MadeKey:
    """A key that was just made.

    Attributes:
        text: The key itself, or the password of a bus user, which is kept nowhere.
        closed_api: With this key the API has been closed to requests without one.
    """

    record: KeyRecord
    text: str
    closed_api: bool = False


class AccountsClient:
    """Speaks to the KV state service. Every method raises `Unavailable` if it, or its store, does not answer.

    Args:
        bus: The connection.
        actor: Who makes the changes, for the audit log.
    """

    def __init__(self, bus: Bus, actor: str) -> None:
        self._bus = bus
        self._actor = actor

    async def read(self) -> AccountRegister:
        """All records."""
        register = AccountRegister()
        try:
            read = await read_accounts(self._bus, timeout_s=ANSWER_S, wait_s=SERVICE_WAIT_S)
        except NoResponders:
            raise _no_service() from None
        register.replace_all(*read)
        return register

    async def put(
        self, record: AccountRecord, *, expected: int = ANY_REVISION, end_streams: bool = False
    ) -> StoredAccount:
        """Stores a record.

        Args:
            record: Takes the place of the one with its name.
            expected: The revision that was read; 0: there must be none; -1: whatever is there.
            end_streams: Answers under way end that it does not allow any more.

        Raises:
            InvalidRequest: The record makes no sense.
            AccountNotFound: A key's tenant does not exist.
            Conflict: There is one already, or it has changed meanwhile.
            RateLimited: There are as many as there may be.
        """
        change = AccountChange(actor=self._actor, put=record, expected=expected, end_streams=end_streams)
        answer = await self._change(change)
        if answer.stored is None:
            raise Unavailable(f"{record.name} was removed meanwhile", reason="accounts")
        return answer.stored

    async def remove(self, name: str, *, end_streams: bool = False) -> None:
        """Removes a record by its name.

        Args:
            name: As the record says it.
            end_streams: Answers under way of a key end as well.

        Raises:
            AccountNotFound: There is none.
            Conflict: It is a tenant with keys.
        """
        await self._change(AccountChange(actor=self._actor, remove=name, end_streams=end_streams))

    async def create_key(self, wanted: KeyRecord) -> MadeKey:
        """Makes a key, or a bus user.

        Args:
            wanted: All but its id, and its digest or the hash of its password, which are drawn here.

        Raises:
            AccountNotFound: Its tenant does not exist.
            Conflict: There is a bus user of that name already.
            RateLimited: There are as many as there may be.
        """
        drawn = new_key()
        if wanted.bus_user is not None:
            return await self._put_user(replace(wanted, key_id=drawn.key_id), expected=0)
        was_open = not (await self.read()).rules.keys_required
        record = replace(wanted, key_id=drawn.key_id, digest=drawn.digest)
        stored = await self.put(record, expected=0)
        closed = was_open and not record.scopes.admin and (await self.read()).rules.keys_required
        assert isinstance(stored.record, KeyRecord)
        return MadeKey(stored.record, drawn.text, closed)

    async def find_key(self, name: str) -> tuple[KeyRecord, int]:
        """Returns a key by its id, its shown part or its text, or a bus user by its name; with its revision.

        Raises:
            AccountNotFound: There is none.
        """
        register = await self.read()
        record = register.named_key(key_id_in(name))
        stored = None if record is None else register.stored(record.name)
        if record is None or stored is None:
            whole = key_id_of(name)  # the text of a key stays secret
            shown = name[:64] if whole is None else shown_prefix(whole)
            raise AccountNotFound(f"there is no key or bus user {shown}", reason="account_not_found")
        return record, stored.revision

    async def rotate_key(self, name: str, overlap_s: int | None = None) -> MadeKey:
        """Makes another key with what a key has, and has that one end; a bus user gets another password.

        Args:
            name: Of the key to replace. If it expires, the new one has as much time as it had at first.
            overlap_s: For how long it stays valid beside the new one; 0: not at all; None: an hour. A bus
                user has one password at a time.

        Raises:
            AccountNotFound: There is no such key.
            InvalidRequest: An overlap is wanted for a bus user.
        """
        old, revision = await self.find_key(name)
        if old.bus_user is not None:
            if overlap_s:
                raise InvalidRequest(
                    "the broker has one password for each user: leave the overlap out, or make a second bus "
                    "user and revoke this one later",
                    param="overlap_s",
                )
            return await self._put_user(old, expected=revision)
        overlap_s = OVERLAP_S if overlap_s is None else overlap_s
        now_s = int(time.time())
        lifetime_s = old.expires_s - old.created_s
        made = await self.create_key(replace(old, expires_s=now_s + lifetime_s if old.expires_s else 0))
        if not overlap_s:
            await self.remove(old.name)
        elif not old.expires_s or now_s + overlap_s < old.expires_s:
            await self.put(replace(old, expires_s=now_s + overlap_s), expected=revision)
        return made

    async def import_bus_users(self, users: Iterable[BusUser]) -> None:
        """Makes records of users that have a password already, and of their tenants, unless there are any.

        Raises:
            RateLimited: There are as many as there may be.
        """
        known = await self.read()
        for user in users:
            if known.bus_user(user.name) is not None:
                continue
            terms = BusUserTerms(
                user=user.name,
                password_hash=user.password_hash,
                max_rps=user.max_rps,
                max_priority=user.max_priority,
            )
            record = KeyRecord(
                key_id=new_key().key_id,
                tenant=user.tenant,
                digest=digest_of(user.password_hash),
                label="of the file of bus users",
                bus_user=terms,
            )
            for one in (TenantRecord(tenant=user.tenant), record):
                with suppress(Conflict):  # it is there already
                    await self.put(one, expected=0)

    async def delete_tenant(self, tenant: str, *, with_keys: bool = False) -> list[str]:
        """Removes a tenant; returns the ids of keys that were revoked before it.

        Raises:
            AccountNotFound: There is no such tenant.
            Conflict: It has keys, and they are not to be revoked.
        """
        revoked = list[str]()
        if with_keys:
            for key in (await self.read()).keys_of(tenant):
                await self.remove(key.name)
                revoked.append(key.key_id)
        await self.remove(TenantRecord(tenant=tenant).name)
        return revoked

    async def require_keys(self, *, required: bool) -> AccountRules:
        """Closes the API to requests without a key, or opens it again; returns all rules.

        Where the records are lost it is the one change that is possible: it decides anew.
        """
        try:
            rules = (await self.read()).rules
        except Unavailable as error:
            if error.data.get("reason") != ACCOUNTS_EMPTIED:
                raise
            rules = AccountRules()
        stored = await self.put(replace(rules, keys_required=required))
        assert isinstance(stored.record, AccountRules)
        return stored.record

    async def audit(self, *, before: int = 0, count: int = 100) -> list[AuditEntry]:
        """Returns entries of the audit log, the newest first; with `before` those with smaller numbers."""
        query = AuditQuery(before=before, count=count)
        try:
            page = await call(
                self._bus, subjects.AUDIT, query, AuditPage, timeout_s=ANSWER_S, wait_s=SERVICE_WAIT_S
            )
        except NoResponders:
            raise _no_service() from None
        return page.entries

    async def _put_user(self, record: KeyRecord, expected: int) -> MadeKey:
        """Gives a bus user a new password."""
        password = new_password()
        hashed = await asyncio.to_thread(hash_password, password)
        stored = await self.put(with_password_hash(record, hashed), expected=expected)
        assert isinstance(stored.record, KeyRecord)
        return MadeKey(stored.record, password)

    async def _change(self, change: AccountChange) -> AccountStored:
        try:
            return await call(
                self._bus,
                subjects.ACCOUNT_CHANGE,
                change,
                AccountStored,
                timeout_s=ANSWER_S,
                wait_s=SERVICE_WAIT_S,
            )
        except NoResponders:
            raise _no_service() from None


def _no_service() -> Unavailable:
    return Unavailable(
        "the KV state service, which keeps tenants and keys, does not run: start it, or `ryz up`",
        reason="no_kvstate",
        retry_after_s=1.0,
    )
