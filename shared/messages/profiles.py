"""Profiles: each leader records its group for some seconds and sends what it and its ranks recorded.

All times are nanoseconds of the leader's monotonic clock, unless they are a rank's own.
"""

from typing import Annotated, ClassVar

import msgspec

from shared.messages.base import SMALL, GroupName, Wire

MAX_PROFILE_S = 60.0
PART_BYTES = 512 * 1024
MAX_RECORDING_BYTES = 256 * 1024 * 1024  # of a recording once it is decompressed


class ProfileQuery(Wire, frozen=True, kw_only=True):
    """Asks leaders to record their work; each answers at once with `ProfileAnswer`.

    Attributes:
        seconds: How long; 0: only read the clock.
        group: Whose leader is asked; None: all.
        op_spans: Ops that the ranks of a group record together at most; 0: as many as the leader allows.
    """

    max_bytes: ClassVar[int] = SMALL
    seconds: Annotated[float, msgspec.Meta(ge=0, le=MAX_PROFILE_S)] = 0.0
    group: GroupName | None = None
    op_spans: Annotated[int, msgspec.Meta(ge=0)] = 0


class ProfileAnswer(Wire, frozen=True, kw_only=True):
    """Immediate answer to `ProfileQuery`; `ProfilePart`s follow if it records.

    Attributes:
        host_id: Names the boot of a host: processes with the same one have the same monotonic clock.
        received_ns: The leader's monotonic clock when the query came.
        answered_ns: The same when the answer left.
        refused: Why it does not record; empty: it does, or was not asked to.
    """

    group: GroupName
    instance_id: str
    host_id: str
    received_ns: int
    answered_ns: int
    refused: str = ""


class ProfilePart(Wire, frozen=True, kw_only=True):
    """A part of a leader's recording; all parts together are a `GroupRecording`, compressed by zlib."""

    group: GroupName
    instance_id: str
    number: int
    count: int
    data: bytes


class RecordedMessage(Wire, frozen=True, kw_only=True):
    """A message that the leader sent, or handled.

    Attributes:
        subject: Its subject.
        outgoing: Whether it was sent.
        begin_ns: When it was sent or its handler began.
        length_ns: How long that took.
        num_bytes: Size of its data.
    """

    subject: str
    outgoing: bool
    begin_ns: int
    length_ns: int
    num_bytes: int


class RecordedRank(Wire, frozen=True, kw_only=True):
    """What one rank recorded.

    Attributes:
        rank: Its number.
        pid: Its process; 0: unknown, on another host.
        host: Its host; empty: the leader's.
        offset_ns: How far its clock is ahead of the leader's, as pings say; None: it answered none.
        error_ns: By how much that may be wrong.
        trace: Its `RankTrace`, encoded (services/worker/rank_protocol/trace_messages.py); empty: none.
        problem: Why there is none.
    """

    rank: int
    pid: int = 0
    host: str = ""
    offset_ns: int | None = None
    error_ns: int = 0
    trace: bytes = b""
    problem: str = ""


class GroupRecording(Wire, frozen=True, kw_only=True):
    """What a leader recorded.

    Attributes:
        group: Its group.
        instance_id: The leader.
        model: What the group serves.
        pid: The leader's process.
        began_ns: Begin of the recording.
        ended_ns: End of the recording.
        unix_ns: What must be added to the leader's monotonic clock to get nanoseconds since 1970.
        steps: Rows of numbers of 8 bytes: the fields of `LoggedStep`, of each engine step.
        rank_steps: Rows of numbers of 8 bytes: step id, rank, begin, end, the times by kind in the order of
            `KINDS`, time idle, and error of the clock.
        messages: In the order in which they were done.
        late_turns: Rows of 2 numbers of 8 bytes: when the event loop should have turned, and when it did.
        ranks: Their recordings.
        left_out: Messages and steps beyond the bounds.
        problem: What else is missing.
    """

    group: GroupName
    instance_id: str
    model: str
    pid: int
    began_ns: int
    ended_ns: int
    unix_ns: int
    steps: bytes = b""
    rank_steps: bytes = b""
    messages: list[RecordedMessage] = []
    late_turns: bytes = b""
    ranks: list[RecordedRank] = []
    left_out: int = 0
    problem: str = ""
