"""Bounds the requests of one client that wait for a broker, a router, a group or a model. Pure."""

from shared.codec import encode
from shared.messages import GenerateRequest

FREE_FACTOR = 7


class WaitingRequests:
    """Counts the requests that wait and their bytes: of all, of each tenant (or its party) and of each model.

    A tenant, and a model, may have up to seven times as much as is free then. So one that is alone has about
    7/8 of all, each of two that want more has less than half, and one that comes new finds some free. The
    rule is the dynamic threshold of Choudhury and Hahne (IEEE/ACM Transactions on Networking 6/2, 1998).
    """

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self._requests = _SharedLimit(max_requests)
        self._bytes = _SharedLimit(max_bytes)

    @property
    def num_requests(self) -> int:
        """How many wait now."""
        return self._requests.taken

    def try_add(self, request: GenerateRequest) -> int:
        """Counts a request that is to wait; returns its bytes, for `remove`, or 0 if it may not wait."""
        parties, size = _parties(request), len(encode(request))
        if not (self._requests.fits(parties, 1) and self._bytes.fits(parties, size)):
            return 0
        self._requests.add(parties, 1)
        self._bytes.add(parties, size)
        return size

    def remove(self, request: GenerateRequest, size: int) -> None:
        """The request does not wait any more."""
        parties = _parties(request)
        self._requests.add(parties, -1)
        self._bytes.add(parties, -size)


class _SharedLimit:
    """A limit of what parties have together, with a part for each that depends on what is free."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: dict[tuple[str, str], int] = {}
        self.taken = 0

    def fits(self, parties: tuple[tuple[str, str], ...], amount: int) -> bool:
        free = self._limit - self.taken
        if amount > free:
            return False
        return all(self._held.get(party, 0) + amount <= FREE_FACTOR * free for party in parties)

    def add(self, parties: tuple[tuple[str, str], ...], amount: int) -> None:
        self.taken += amount
        for party in parties:
            held = self._held.get(party, 0) + amount
            if held:
                self._held[party] = held
            else:
                del self._held[party]


def _parties(request: GenerateRequest) -> tuple[tuple[str, str], ...]:
    return ("tenant", request.party_or_tenant), ("model", request.model)
