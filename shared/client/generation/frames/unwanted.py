"""Decides when a leader gets a cancel because this client does not have its request. Pure.

A frame may come late, after a cancel or an end; such frames stop by themselves. A frame may belong to a
request that this client is taking over, or that it has left to another caller. Frames that go on after
`PATIENCE_S` have no reader: a cancel was lost, or a leader handed a request over to a caller that had left.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from shared.client.generation.commands import SendCancel
from shared.messages import Accepted, AnyFrame, FrameBatch, Tokens

PATIENCE_S = 1.0  # before the first cancel of a request, and between two
MAX_KNOWN = 4096


class UnwantedFrames:
    """The requests of one client that it does not have. It is asked about frames of unknown requests only."""

    def __init__(self) -> None:
        self._num_attaching = 0
        self._since: OrderedDict[str, float] = OrderedDict()  # the first frame, or the last cancel
        self._left: OrderedDict[str, None] = OrderedDict()

    @contextmanager
    def attaching(self) -> Iterator[None]:
        """A caller takes a request over, whose id may not be known yet: no request is unwanted meanwhile."""
        self._num_attaching += 1
        try:
            yield
        finally:
            self._num_attaching -= 1

    def leave_request(self, request_id: str) -> None:
        """The request runs on for another caller, which is still to come."""
        self._left[request_id] = None
        if len(self._left) > MAX_KNOWN:
            self._left.popitem(last=False)

    def take_request(self, request_id: str) -> None:
        """The client has the request (again)."""
        self._left.pop(request_id, None)
        self._since.pop(request_id, None)

    def may_cancel(self, request_id: str) -> bool:
        """Whether no caller is known that wants the request."""
        return not self._num_attaching and request_id not in self._left

    def must_cancel(self, request_id: str, now: float) -> bool:
        """A frame of the request came; returns whether to send its leader a cancel now."""
        if not self.may_cancel(request_id):
            return False
        since = self._since.setdefault(request_id, now)
        if len(self._since) > MAX_KNOWN:
            self._since.popitem(last=False)
        if now - since < PATIENCE_S:
            return False
        self._since[request_id] = now
        return True

    def answer_frame(self, frame: AnyFrame, batch: FrameBatch, now: float) -> SendCancel | None:
        """Returns the cancel for the leader that sent a frame of a request that the client does not have.

        Frames come by this client's own subject only. If another caller has the request now, it has a later
        attempt, which the cancel does not reach.
        """
        group, instance_id = batch.group, batch.instance_id
        if isinstance(frame, Accepted):
            group, instance_id = frame.group, frame.instance_id or instance_id
            unwanted = self.may_cancel(frame.request_id)
        else:
            unwanted = isinstance(frame, Tokens) and self.must_cancel(frame.request_id, now)
        return SendCancel(group, frame.attempt, instance_id) if unwanted and group else None
