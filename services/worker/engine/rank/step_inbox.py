"""The frames between a rank and its leader: plans in their order, and the masks of the step that runs.

The plan of the next step may come before the masks of the step that waits for them; it is kept meanwhile.
"""

import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec

from services.worker.engine.rank.sequences import PlanError
from services.worker.rank_protocol.engine_info import MAX_OUTSTANDING
from services.worker.rank_protocol.plan import StepPlan
from services.worker.rank_protocol.rank_messages import FrameKind, FrameReader, pack_frame
from services.worker.rank_protocol.step_masks import StepMasks

_READ_BYTES = 1 << 18


class LeaderSocket:
    """The socket to the leader; several threads send on it, and one reads."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sending = threading.Lock()

    def sendall(self, data: bytes) -> None:
        """Sends whole frames."""
        with self._sending:
            self._sock.sendall(data)

    def report(self, kind: FrameKind, message: msgspec.Struct) -> None:
        """Sends a message from a thread beside the steps; does nothing if the leader is gone."""
        with suppress(OSError):  # the thread of the steps ends the process
            self.sendall(pack_frame(kind, message))

    def frames(self) -> Iterator[tuple[FrameKind, bytes]]:
        """Yields frames as they come, until the leader closes the socket."""
        reader = FrameReader()
        while data := self._receive():
            yield from reader.feed(data)

    def _receive(self) -> bytes:
        try:
            return self._sock.recv(_READ_BYTES)
        except ConnectionResetError:
            return b""  # the same as an orderly end


class LeaderGone(Exception):
    """The leader closed the socket while a step waited for its masks."""


class StepInbox:
    """Sorts frames.

    Args:
        frames: From the leader's socket, after the config; blocks until there is one, and ends with the
            socket.
        on_other: Gets each frame that has nothing to do with steps.
    """

    def __init__(
        self, frames: Iterator[tuple[FrameKind, bytes]], on_other: Callable[[FrameKind, bytes], None]
    ) -> None:
        self._frames = frames
        self._on_other = on_other
        self._plans: deque[StepPlan] = deque()
        self._masks: deque[StepMasks] = deque()
        self._decode_plan = msgspec.msgpack.Decoder(StepPlan).decode
        self._decode_masks = msgspec.msgpack.Decoder(StepMasks).decode

    def plans(self) -> Iterator[StepPlan]:
        """Yields plans, until the leader closes the socket."""
        while self._plans or self._read_frame():
            if self._plans:
                yield self._plans.popleft()

    def await_masks(self, step_id: int) -> list[bytes]:
        """Waits for the masks of the step that runs.

        Raises:
            PlanError: The masks of another step came, or more plans than a leader may send.
            LeaderGone: The socket was closed.
        """
        while not self._masks:
            if not self._read_frame():
                raise LeaderGone(f"the leader is gone, and step {step_id} has no masks")
            if len(self._plans) > MAX_OUTSTANDING:
                raise PlanError(f"{len(self._plans)} plans came before the masks of step {step_id}")
        found = self._masks.popleft()
        if found.step_id != step_id:
            raise PlanError(f"the masks of step {found.step_id} came while step {step_id} ran")
        return found.masks

    def _read_frame(self) -> bool:
        """Waits for a frame and sorts it; returns False at the end of the socket."""
        frame = next(self._frames, None)
        if frame is None:
            return False
        kind, body = frame
        if kind is FrameKind.MASKS:
            self._masks.append(self._decode_masks(body))
        elif kind is FrameKind.PLAN:
            self._plans.append(self._decode_plan(body))
        else:
            self._on_other(kind, body)
        return True
