"""What is read of streams, and how the broker numbers it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shared.bus.api import Message

SEQUENCE, SUBJECT = "Nats-Sequence", "Nats-Subject"
EXPECTED_LAST, MESSAGE_ID = "Nats-Expected-Last-Subject-Sequence", "Nats-Msg-Id"
EXPECTED_LAST_OF_STREAM = "Nats-Expected-Last-Sequence"
_ACK_TOKENS = 9  # $JS.ACK.<stream>.<consumer>.<delivered>.<seq>.<consumer seq>.<time>.<pending>
NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message of a stream.

    Attributes:
        seq: Its number in the stream.
        headers: Its headers, without those of JetStream.
    """

    seq: int
    subject: str
    data: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamState:
    """What a stream has.

    Attributes:
        last: The number of the last message that was ever written; 0: none was.
        messages: How many are there.
        created: When the stream was made, as the broker writes it; another time is another stream.
    """

    last: int
    messages: int
    created: str


@dataclass(frozen=True, slots=True)
class WorkItem:
    """A message that a consumer has delivered; it comes again if it is not acknowledged in time.

    Attributes:
        delivered: How often it was delivered, this time included.
    """

    subject: str
    data: bytes
    headers: Mapping[str, str]
    ack: str
    delivered: int


def stored_message(message: Message) -> StoredMessage | None:
    """A message that the broker reads out of a stream; None for its word that there is no more."""
    seq = message.headers.get(SEQUENCE, "")
    if not seq.isdigit():
        return None
    headers = {name: value for name, value in message.headers.items() if not name.startswith("Nats-")}
    return StoredMessage(int(seq), message.headers.get(SUBJECT, ""), message.data, headers)


def work_item(message: Message) -> WorkItem | None:
    """A message that a consumer delivers; None for its word that there is no more."""
    tokens = message.reply.split(".")
    if tokens[:2] != ["$JS", "ACK"]:
        return None
    position = 4 if len(tokens) == _ACK_TOKENS else 6  # the longer form has domain and account first
    return WorkItem(message.subject, message.data, message.headers, message.reply, int(tokens[position]))


def stream_config(name: str, subjects: list[str], **more: Any) -> dict[str, Any]:
    """The configuration of a stream on disk, which refuses more when it is full."""
    return {
        "name": name,
        "subjects": subjects,
        "storage": "file",
        "retention": "limits",
        "discard": "new",
        "num_replicas": 1,
        "allow_direct": True,
    } | more
