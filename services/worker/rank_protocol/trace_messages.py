"""Messages between leader and ranks about times: clock pings, the recording of a profile, and its pieces.

A rank of the leader's host answers pings on its life socket, from a thread of its own, so that a step does
not delay them. A rank of another host answers between two steps, and adds its newest steps, since
it shares no memory with the leader.
"""

import struct
from typing import Literal, NamedTuple

import msgspec

LIFE_PONG = struct.Struct("=Bqq")  # number of the ping, when it was received, when it was answered
PIECE_BYTES = 512 * 1024  # of a recording in one frame
MAX_SPANS = 160_000  # spans of ops in the recording of one rank, all threads together
MAX_STEPS = 20_000  # steps in it
MAX_MOVES = 4096  # of KV blocks


class ClockQuestion(msgspec.Struct, frozen=True):
    """Leader, to a rank of another host: asks for its clock and its newest steps."""

    ping_id: int


class Pong(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Such a rank: its clock when the ping came and when the answer left, in nanoseconds.

    Attributes:
        steps: Rows of numbers of 8 bytes: the arguments of `StepTimesWriter.write_step`, of each new step.
        totals: The fields of `RankTotals`, one after another.
    """

    ping_id: int
    received_ns: int
    answered_ns: int
    steps: bytes = b""
    totals: list[int] = []


class TraceOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Leader: begin to record, end it, read a piece of what was recorded, or drop it.

    Attributes:
        action: What to do; `end` and `read` are answered by a `TracePiece`.
        seconds: With `begin`: the recording ends by itself some seconds after them.
        max_spans: With `begin`: spans of ops that are kept.
        offset: With `read`: where the piece begins.
    """

    action: Literal["begin", "end", "read", "drop"]
    seconds: float = 0.0
    max_spans: int = 0
    offset: int = 0


class TracePiece(msgspec.Struct, frozen=True, kw_only=True):
    """Rank: a piece of an encoded `RankTrace` of `size` bytes."""

    size: int
    offset: int
    data: bytes


class BlockMove(NamedTuple):
    """Blocks that a rank fetched from the store or wrote to it, in a thread beside its steps."""

    name: str
    end_ns: int
    length_ns: int
    blocks: int


class RankTrace(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank recorded in a profile; times are nanoseconds of its monotonic clock.

    Attributes:
        ops: Name, kind and layer (-1: none) of each op.
        spans: Rows of 4 numbers of 8 bytes: thread, begin, end, and index in `ops`.
        left_out: Spans that were too many.
        phases: Rows of 7 numbers of 8 bytes: step id, begin, and the ends of the KV copies, of the forward
            pass, of the wait for masks, of sampling, and of the broadcast of tokens.
        moves: KV blocks that were moved.
    """

    ops: list[tuple[str, str, int]]
    spans: bytes
    left_out: int
    phases: bytes
    moves: list[BlockMove]
