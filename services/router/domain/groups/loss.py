"""The loss of a group, and the reading of the broker's reports of ended connections.

The broker reports which client's connection ended, and why. Only an end from the client's side means that a
leader is gone. The broker also closes connections of living leaders, when it shuts down or a client reads too
slowly, and a connection that it finds stale was replaced before. Heartbeats decide in those cases. The
connection for heartbeats is that of another process, whose end is not the leader's.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from shared.messages import DownReason

MAX_NEWS_BYTES = 64 * 1024
_PEER_ENDED = frozenset(("", "Client Closed", "Read Error", "Write Error"))
_LEADER = "worker/"
# Clients choose their names, but not their users: with our accounts, only leaders are believed to be leaders
_ACCOUNT, _LEADERS_USER = "RYZ", "worker"
# why a group is lost whose heartbeat says that its leader does not run
REASONS: Mapping[str, DownReason] = {"ended": "disconnected", "frozen": "silent", "hung": "silent"}


class Loss(NamedTuple):
    """A group was given up.

    Attributes:
        own: This router found it, so it publishes it.
        leaving: The group had announced that it ends.
        tripped: The loss opened the group's breaker.
        cause: What a heartbeat said of the leader, as in `GroupDown`.
        silent_s: Of a silence that this router found, its length without what counts against no group.
        limit_s: And how long it might have been.
    """

    group: str
    instance_id: str
    reason: DownReason
    own: bool = True
    leaving: bool = False
    tripped: bool = False
    cause: str = ""
    silent_s: float = 0.0
    limit_s: float = 0.0


class _Client(msgspec.Struct):
    name: str = ""
    acc: str = ""
    user: str = ""


class _Disconnect(msgspec.Struct):
    """The used fields of the broker's `io.nats.server.advisory.v1.client_disconnect`."""

    client: _Client
    reason: str = ""


_decoder = msgspec.json.Decoder(_Disconnect)


def read_disconnect(data: bytes) -> str | None:
    """The instance id of the leader whose end the broker reports; None for other reports.

    Raises:
        ValueError: it is not the broker's JSON.
    """
    if len(data) > MAX_NEWS_BYTES:
        raise ValueError(f"{len(data)} bytes are too much for news of a client")
    try:
        news = _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from error
    name = news.client.name
    if news.client.acc == _ACCOUNT and news.client.user != _LEADERS_USER:
        return None
    if not name.startswith(_LEADER) or news.reason not in _PEER_ENDED:
        return None
    instance_id = name.removeprefix(_LEADER)
    # a leader lives on without a connection of another name, as those for callers outside and for heartbeats
    return instance_id if instance_id and "/" not in instance_id else None
