"""JetStream's calls over our bus: write with a condition, read, take work, acknowledge.

Calls are those of NATS's published API (`$JS.API`). They go over the service's one connection, so that its
rules (who the broker is, how it reconnects) hold for them too. Nothing here remembers what the broker has.
"""

import asyncio
import base64
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from shared.bus.api import Bus, Message, NoResponders, Subscription
from shared.bus.jetstream.errors import (
    NO_CONSUMER,
    NO_MESSAGE,
    JetStreamRefused,
    NoStream,
    no_jetstream,
    raise_refusal,
)
from shared.bus.jetstream.stream_messages import (
    EXPECTED_LAST,
    EXPECTED_LAST_OF_STREAM,
    MESSAGE_ID,
    NANOSECONDS,
    StoredMessage,
    StreamState,
    WorkItem,
    stored_message,
    work_item,
)
from shared.bus.jetstream.subjects import API
from shared.bus.subject import broker_away
from shared.errors import Unavailable

ACK, PROGRESS = b"+ACK", b"+WPI"
MAX_PENDING = 8192  # messages that may wait here for their reader
READ_BYTES = 4 * 2**20  # of one read


class JetStream:
    """Makes calls.

    Every call raises `Unavailable` if the broker does not answer, and `NoJetStream` if it has none.

    Args:
        timeout_s: How long the broker may take for an answer.
    """

    def __init__(self, bus: Bus, *, timeout_s: float = 5.0) -> None:
        self._bus = bus
        self._timeout_s = timeout_s
        self._inbox = bus.new_inbox()
        self._readers: dict[str, asyncio.Queue[Message]] = {}
        self._number = 0
        self._work_inbox = bus.new_inbox()
        self._delivered: asyncio.Queue[Message] = asyncio.Queue()
        self._taking = asyncio.Lock()  # deliveries keep their own subjects, so one take runs at a time
        self._starting = asyncio.Lock()
        self._subscriptions: list[Subscription] = []

    @property
    def max_payload(self) -> int:
        """The largest payload of a message, in bytes."""
        return self._bus.max_payload

    async def start(self) -> None:
        """Subscribes to what is read and delivered; `read` and `take` do so themselves."""
        async with self._starting:
            if self._subscriptions:
                return
            both = ((self._inbox, self._arrived), (self._work_inbox, self._delivered.put))
            self._subscriptions = [
                await self._bus.subscribe(f"{inbox}.*", arrived, max_pending=MAX_PENDING)
                for inbox, arrived in both
            ]

    async def stop(self) -> None:
        """Ends the subscriptions."""
        for subscription in self._subscriptions:
            await subscription.unsubscribe()
        self._subscriptions.clear()

    async def ensure_stream(self, config: Mapping[str, Any]) -> None:
        """Makes a stream, or gives one that exists this configuration."""
        name = config["name"]
        try:
            await self._call(f"STREAM.CREATE.{name}", config, f"stream {name}")
        except JetStreamRefused:
            await self._call(f"STREAM.UPDATE.{name}", config, f"stream {name}")

    async def put(
        self,
        subject: str,
        data: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        expected_last: int | None = None,
        expected_last_of_stream: int | None = None,
        message_id: str = "",
    ) -> int:
        """Writes a message; returns its number when it is on the broker's disk.

        Args:
            subject: Decides the stream.
            expected_last: The number of the last message under this subject; 0: there must be none.
            expected_last_of_stream: The number of the last message that the stream was given, under any
                subject.
            message_id: A second message with this id within the stream's window is not written.

        Raises:
            WrongLastMessage: Another message is the last one.
            NoStream: There is no such stream, or no JetStream.
            StreamFull: There is no room.
        """
        given = dict(headers or {})
        if expected_last is not None:
            given[EXPECTED_LAST] = str(expected_last)
        if expected_last_of_stream is not None:
            given[EXPECTED_LAST_OF_STREAM] = str(expected_last_of_stream)
        if message_id:
            given[MESSAGE_ID] = message_id
        try:
            reply = await self._bus.request(subject, data, timeout_s=self._timeout_s, headers=given or None)
        except NoResponders:
            raise NoStream(f"no stream takes {subject}", reason="no_stream") from None
        return int(_answer(reply.data, f"write to {subject}")["seq"])

    async def state(self, stream: str) -> StreamState:
        """What a stream has; raises `NoStream` if it does not exist."""
        info = await self._call(f"STREAM.INFO.{stream}", None, f"stream {stream}")
        state = info["state"]
        return StreamState(int(state["last_seq"]), int(state["messages"]), str(info["created"]))

    async def last(self, stream: str, subject: str) -> StoredMessage | None:
        """The last message under a subject."""
        try:
            found = await self._call(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject}, subject)
        except NoStream:
            return None
        except JetStreamRefused as error:
            if error.err_code == NO_MESSAGE:
                return None
            raise
        message = found["message"]
        data = base64.b64decode(message.get("data", ""))
        return StoredMessage(int(message["seq"]), message["subject"], data)

    async def read(self, stream: str, subjects: str, after: int, limit: int = 256) -> list[StoredMessage]:
        """The next messages of a stream that match a pattern; empty: there are no more.

        Args:
            after: The number of the last message that is known; 0: none.
            limit: How many, and at most about `READ_BYTES`.

        Raises:
            NoStream: There is no such stream, or no JetStream.
        """
        question = {
            "seq": after + 1,
            "next_by_subj": subjects,
            "batch": limit,
            "max_bytes": READ_BYTES,
        }
        await self.start()
        self._number += 1
        reply = f"{self._inbox}.{self._number}"
        arrived = self._readers[reply] = asyncio.Queue[Message]()
        found: list[StoredMessage] = []
        try:
            body = msgspec.json.encode(question)
            await self._bus.publish(f"{API}.DIRECT.GET.{stream}", body, reply=reply)
            async with asyncio.timeout(self._timeout_s):
                while True:
                    message = await arrived.get()
                    if message.no_responders:
                        raise NoStream(f"no stream {stream}", reason="no_stream")
                    one = stored_message(message)
                    if one is None:
                        return found
                    found.append(one)
        except TimeoutError:
            raise broker_away(f"stream {stream} was not read in time") from None
        finally:
            del self._readers[reply]

    async def created(self, stream: str) -> str:
        """When a stream was made: one that was lost and made again has other numbers.

        Raises:
            NoStream: There is no such stream.
        """
        return str((await self._call(f"STREAM.INFO.{stream}", None, f"stream {stream}"))["created"])

    async def purge(self, stream: str, subjects: str, *, before: int = 0) -> None:
        """Removes all messages that match a pattern; with `before` only those with smaller numbers."""
        which = {"filter": subjects} | ({"seq": before} if before else {})
        with suppress(NoStream):
            await self._call(f"STREAM.PURGE.{stream}", which, f"stream {stream}")

    async def ensure_consumer(self, stream: str, name: str, subjects: str, *, ack_wait_s: float) -> None:
        """Makes a durable consumer of the messages that match a pattern, unless it is there."""
        config = {
            "durable_name": name,
            "filter_subject": subjects,
            "ack_policy": "explicit",
            "ack_wait": round(ack_wait_s * NANOSECONDS),
            "deliver_policy": "all",
            "replay_policy": "instant",
            "max_ack_pending": 10_000,
        }
        body = {"stream_name": stream, "config": config}
        await self._call(f"CONSUMER.DURABLE.CREATE.{stream}.{name}", body, f"consumer {name}")

    async def delete_consumer(self, stream: str, name: str) -> None:
        """Removes a consumer."""
        try:
            await self._call(f"CONSUMER.DELETE.{stream}.{name}", None, f"consumer {name}")
        except JetStreamRefused as error:
            if error.err_code != NO_CONSUMER:
                raise
        except NoStream:
            return

    async def waiting(self, stream: str, name: str) -> int | None:
        """Messages of a consumer that are not acknowledged; None if there is no such consumer."""
        try:
            info = await self._call(f"CONSUMER.INFO.{stream}.{name}", None, f"consumer {name}")
        except JetStreamRefused as error:
            if error.err_code == NO_CONSUMER:
                return None
            raise
        except NoStream:
            return None
        return int(info["num_pending"]) + int(info["num_ack_pending"])

    async def take(self, stream: str, name: str, count: int) -> list[WorkItem]:
        """Takes up to `count` messages that wait at a consumer; waits for none.

        Items of an earlier call that came too late are among them.
        """
        items: list[WorkItem] = []
        question = msgspec.json.encode({"batch": count, "no_wait": True})
        await self.start()
        async with self._taking:
            self._number += 1
            reply = f"{self._work_inbox}.{self._number}"
            await self._bus.publish(f"{API}.CONSUMER.MSG.NEXT.{stream}.{name}", question, reply=reply)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout_s):
                    while len(items) < count:
                        message = await self._delivered.get()
                        item = work_item(message)
                        if item is not None:
                            items.append(item)
                        elif message.subject == reply:
                            break
        return items

    async def answer(self, item: WorkItem, word: bytes) -> None:
        """Reports the state of an item to the broker: `ACK` or `PROGRESS`."""
        with suppress(Unavailable):  # no broker: the item comes again, and is known by its result
            await self._bus.publish(item.ack, word)

    async def give_back(self, item: WorkItem) -> None:
        """Lets an item be delivered again at once."""
        await self.answer(item, b"-NAK")

    async def _call(self, subject: str, body: Mapping[str, Any] | None, what: str) -> dict[str, Any]:
        data = msgspec.json.encode(body) if body is not None else b""
        try:
            reply = await self._bus.request(f"{API}.{subject}", data, timeout_s=self._timeout_s)
        except NoResponders:
            raise no_jetstream() from None
        return _answer(reply.data, what)

    async def _arrived(self, message: Message) -> None:
        reader = self._readers.get(message.subject)
        if reader is not None:
            reader.put_nowait(message)


def _answer(data: bytes, what: str) -> dict[str, Any]:
    answer: dict[str, Any] = msgspec.json.decode(data)
    if error := answer.get("error"):
        raise_refusal(what, error)
    return answer
