"""Tenants, keys and prices in a stream of the broker: one subject for each record, the last message counts.

Each write names the number of the stream's last message, so that the changes of all replicas are in one
order, and that number is the version. Before an answer the state of the stream is asked for, and what is new
in it is read: no replica answers less than any of them has written. A removed record leaves a message without
content; when there are many of these, the oldest are dropped, which other replicas see by the number of
messages.
"""

import asyncio
import secrets

import structlog

from services.kvstate.accounts.store import VersionMoved
from services.kvstate.accounts.table import AccountTable
from shared.bus import Bus
from shared.bus.jetstream.errors import NoJetStream, NoStream, WrongLastMessage
from shared.bus.jetstream.jetstream import JetStream
from shared.bus.jetstream.stream_messages import StoredMessage, StreamState, stream_config
from shared.codec import decode, encode
from shared.errors import InvalidRequest, RyzError, Unavailable
from shared.messages import AccountRecord, StoredAccount
from shared.streams import ACCOUNTS_STREAM, account_record
from shared.subjects import name_in

READ_COUNT = 2000  # messages of one read
MAX_DROPPED, DROP_AT_ONCE = 1000, 200
_TRIES = 5  # reads that a change of another replica has cut in two
_MARK = "Ryz-Write"  # a header: which write a message is of
_PREFIX = account_record("")
log = structlog.get_logger(__name__)


class StreamAccounts:
    """Implements `AccountStore`.

    Args:
        bus: The connection of `jetstream`.
        jetstream: The broker's.
        max_dropped: Removed records whose messages are kept before the oldest are dropped.
    """

    def __init__(self, bus: Bus, jetstream: JetStream, *, max_dropped: int = MAX_DROPPED) -> None:
        self._bus = bus
        self._jetstream = jetstream
        self._max_dropped = max_dropped
        self._table = AccountTable()
        self._marks: dict[str, str] = {}  # of the last message under each name
        self._created = ""  # of the stream that the table was read from; empty: it has to be read whole
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()
        self._begun = self._done = 0  # reads, in order

    async def read(self) -> AccountTable:
        """See `AccountStore.read`. Calls at the same time share reads that begin after them."""
        wanted = self._begun + 1
        async with self._reading:
            if self._done < wanted:
                self._begun += 1
                number = self._begun
                await self._read_whole_or_new()
                self._done = number
        return self._table

    async def write(self, name: str, record: AccountRecord | None, version: int) -> None:
        """See `AccountStore.write`."""
        mark, seq = secrets.token_hex(8), 0
        stored = None if record is None else StoredAccount(record=record, revision=version + 1)
        lost: Unavailable | None = None
        try:
            seq = await self._jetstream.put(
                account_record(name),
                b"" if stored is None else encode(stored),
                headers={_MARK: mark},
                expected_last_of_stream=version,
            )
        except WrongLastMessage:
            raise VersionMoved from None
        except NoJetStream as error:
            raise no_streams(error) from None
        except Unavailable as error:
            lost = error
        await self.read()
        if not self._has(name, mark, seq):
            raise lost or Unavailable(
                "the broker acknowledged the change and does not have it; look, and make it again",
                reason="accounts_store",
            )
        if record is None:
            await self._drop_oldest()

    def _has(self, name: str, mark: str, seq: int) -> bool:
        """Whether a write was done: its message is there, or was acknowledged and has a successor."""
        if self._marks.get(name) == mark:
            return True
        found = self._table.stored(name)
        revision = found.revision if found is not None else self._table.dropped.get(name, 0)
        return 0 < seq < revision

    async def _read_whole_or_new(self) -> None:
        if self._bus.restored_at > self._read_at:
            self._created = ""  # the broker may have come back with less
        self._read_at = asyncio.get_running_loop().time()
        for _ in range(_TRIES):
            state = await self._state()
            if state.created == self._created and state.last >= self._table.version:
                await self._take_new(self._table, self._marks, state)
            else:
                table, marks = AccountTable(), dict[str, str]()
                await self._take_new(table, marks, state)
                self._table, self._marks, self._created = table, marks, state.created
                log.info("accounts read", known=table.num_messages, version=table.version)
            if self._table.version == state.last and self._table.num_messages == state.messages:
                return
            if self._table.version == state.last:
                self._created = ""  # another replica has dropped messages
        self._created = ""
        raise Unavailable("tenants and keys change faster than they can be read", reason="accounts_store")

    async def _take_new(self, table: AccountTable, marks: dict[str, str], state: StreamState) -> None:
        while table.version < state.last:
            found = await self._jetstream.read(
                ACCOUNTS_STREAM, account_record("*"), table.version, READ_COUNT
            )
            for message in found:
                _take(table, message)
                marks[_name(message)] = message.headers.get(_MARK, "")
            if not found:
                table.version = state.last  # the last messages were dropped

    async def _state(self) -> StreamState:
        """The state of the stream, which is made if it is not there."""
        try:
            try:
                return await self._jetstream.state(ACCOUNTS_STREAM)
            except NoStream:
                await self._jetstream.ensure_stream(
                    stream_config(ACCOUNTS_STREAM, [account_record("*")], max_msgs_per_subject=1)
                )
                return await self._jetstream.state(ACCOUNTS_STREAM)
        except NoJetStream as error:
            raise no_streams(error) from None

    async def _drop_oldest(self) -> None:
        if len(self._table.dropped) <= self._max_dropped:
            return
        oldest = sorted(self._table.dropped.items(), key=lambda item: item[1])[:DROP_AT_ONCE]
        try:
            for name, revision in oldest:
                await self._jetstream.purge(ACCOUNTS_STREAM, account_record(name), before=revision + 1)
        except RyzError as error:  # they are dropped with the next removal
            log.warning("removed accounts not dropped", error=error.message)
        self._created = ""  # what is left is read


def no_streams(error: NoJetStream) -> NoJetStream:
    """The error for a broker without JetStream, in words about tenants and keys."""
    return NoJetStream(
        "tenants, keys and prices are kept in the broker's JetStream, and it has none: give it a "
        "`jetstream { store_dir: ... }`, and the KV state service's user its subjects (docs/tenants.md)",
        **error.data,
    )


def _name(message: StoredMessage) -> str:
    return name_in(message.subject.removeprefix(_PREFIX))


def _take(table: AccountTable, message: StoredMessage) -> None:
    name = _name(message)
    if not message.data:
        table.drop(name, message.seq)
        return
    try:
        table.put(decode(message.data, StoredAccount).record, message.seq)
    except InvalidRequest as error:
        log.error("account not read", subject=message.subject, error=error.message)
        table.put_unread(name, message.seq)
