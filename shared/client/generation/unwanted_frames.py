"""Which frames come for requests that this client does not have, and when their leader is told to stop. Pure.

Some come late, after a cancel or an end: they stop by themselves. Some are of a request that is being taken
over, or that was left to another caller on purpose. Those that go on after `PATIENCE_S` are made for nobody:
a cancel was lost, or a leader has handed a request over to a caller that was gone before it heard of it.
"""

from collections import OrderedDict

PATIENCE_S = 1.0  # before the first cancel of a request, and between two
MAX_KNOWN = 4096


class Unwanted:
    """Of one client. It is asked about frames of unknown requests only, so usual frames cost nothing.

    attaching: how many callers are taking a request over; until they have it, its frames are unknown, and its
    id may be, too.
    """

    def __init__(self) -> None:
        self.attaching = 0
        self._since: OrderedDict[str, float] = OrderedDict()  # the first frame, or the last cancel
        self._left: OrderedDict[str, None] = OrderedDict()

    def leave(self, request_id: str) -> None:
        """It runs on for another caller, who is to come."""
        self._left[request_id] = None
        if len(self._left) > MAX_KNOWN:
            self._left.popitem(last=False)

    def take(self, request_id: str) -> None:
        """The client has it (again)."""
        self._left.pop(request_id, None)
        self._since.pop(request_id, None)

    def may_cancel(self, request_id: str) -> bool:
        """Whether no caller is known who wants it."""
        return not self.attaching and request_id not in self._left

    def is_due(self, request_id: str, now: float) -> bool:
        """A frame of it came; whether its leader is to be told now that it makes them for nobody."""
        if not self.may_cancel(request_id):
            return False
        since = self._since.setdefault(request_id, now)
        if len(self._since) > MAX_KNOWN:
            self._since.popitem(last=False)
        if now - since < PATIENCE_S:
            return False
        self._since[request_id] = now
        return True
