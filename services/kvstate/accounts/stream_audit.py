"""The audit log: a stream of the broker that takes entries, and refuses to delete any."""

import structlog
from msgspec.structs import replace

from services.kvstate.accounts.stream_accounts import no_streams
from shared.bus.jetstream.errors import NoJetStream, NoStream
from shared.bus.jetstream.jetstream import JetStream
from shared.bus.jetstream.stream_messages import StoredMessage, stream_config
from shared.codec import decode, encode
from shared.errors import InvalidRequest
from shared.messages import AuditEntry
from shared.streams import AUDIT_STREAM, audit_entry

MAX_BYTES = 2**30  # about three million entries; beyond it the oldest go
log = structlog.get_logger(__name__)


class StreamAudit:
    """Implements `AuditLog`."""

    def __init__(self, jetstream: JetStream) -> None:
        self._jetstream = jetstream

    async def add(self, entry: AuditEntry) -> int:
        """See `AuditLog.add`."""
        data = encode(entry)
        try:
            return await self._jetstream.put(audit_entry(), data)
        except NoStream:
            await self._ensure_stream()
            return await self._jetstream.put(audit_entry(), data)

    async def newest(self, before: int, count: int) -> list[AuditEntry]:
        """See `AuditLog.newest`."""
        try:
            last = (await self._jetstream.state(AUDIT_STREAM)).last
        except NoJetStream as error:
            raise no_streams(error) from None
        except NoStream:
            return []
        end = min(before or last + 1, last + 1)
        first = max(1, end - count)
        found = list[StoredMessage]()
        after = first - 1
        while after + 1 < end:
            read = await self._jetstream.read(AUDIT_STREAM, audit_entry(), after, end - 1 - after)
            if not read:
                break
            found += read
            after = read[-1].seq
        return [_entry(message) for message in reversed(found) if message.seq < end]

    async def _ensure_stream(self) -> None:
        config = stream_config(
            AUDIT_STREAM,
            [audit_entry()],
            discard="old",
            max_bytes=MAX_BYTES,
            deny_delete=True,
            deny_purge=True,
        )
        try:
            await self._jetstream.ensure_stream(config)
        except NoJetStream as error:
            raise no_streams(error) from None


def _entry(message: StoredMessage) -> AuditEntry:
    try:
        return replace(decode(message.data, AuditEntry), number=message.seq)
    except InvalidRequest as error:
        log.error("audit entry not read", error=error.message)
        return AuditEntry(number=message.seq, actor="?", action="?", subject="?", detail=error.message)
