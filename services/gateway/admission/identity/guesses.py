"""Slows addresses down that send keys which are not known, and counts refused keys.

An address may be wrong `MAX_WRONG` times in a minute. After that its calls are refused without a look at
their keys, until a part of the minute has passed: the right key is refused like a wrong one, so guesses teach
nothing. Only a key that was valid from this address before is looked at, so that who shares an address with
a guesser goes on. Callers behind a trusted proxy have one address, so they are only counted.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from shared.errors import RateLimited
from shared.flow.token_bucket import TokenBucket

MAX_WRONG = 20  # in a minute: people with a wrong key stay below it, and a program with one is seen
WINDOW_S = 60.0
MAX_ADDRESSES = 4096
MAX_KNOWN = 16_384  # pairs of addresses and keys
_GUESS = "invalid_api_key"


def _nowhere(client: Sequence[object] | None) -> str:
    return ""


def _uncounted(reason: str) -> None:
    """For parts without metrics."""


class KeyGuesses:
    """Counts wrong keys by address, and knows which keys were valid from where.

    Args:
        address_of: Names the address of a caller; empty: not told apart from others.
        count: Counts calls that were refused for their keys, by reason.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        address_of: Callable[[Sequence[object] | None], str] = _nowhere,
        count: Callable[[str], None] = _uncounted,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address_of = address_of
        self._count = count
        self._clock = clock
        self._wrong: OrderedDict[str, TokenBucket] = OrderedDict()
        self._known: OrderedDict[tuple[str, bytes], None] = OrderedDict()

    def check(self, client: Sequence[object], digest: bytes) -> None:
        """Raises `RateLimited` if the address was wrong too often and the key is not one of its own.

        Args:
            client: Address and port of the caller.
            digest: Of the key.
        """
        if not self._wrong:
            return
        address = self._address_of(client)
        bucket = self._wrong.get(address)
        if bucket is None or (address, digest) in self._known:
            return
        wait_s = bucket.wait_s(1.0, self._clock())
        if wait_s:
            self._count("slowed")
            raise RateLimited(
                f"{MAX_WRONG} API keys in a minute from this address were not known; retry in {wait_s:.0f} s",
                reason="key_guesses",
                retry_after_s=wait_s,
            )

    def note_refused(self, client: Sequence[object], digest: bytes, code: str) -> None:
        """Counts a key that was refused; one that is not known counts for its address."""
        self._count(code)
        if code != _GUESS:
            return
        address, now_s = self._address_of(client), self._clock()
        self._known.pop((address, digest), None)
        if not address:
            return
        bucket = self._wrong.get(address)
        if bucket is None:
            bucket = self._wrong[address] = TokenBucket(MAX_WRONG / WINDOW_S, MAX_WRONG, now_s)
            if len(self._wrong) > MAX_ADDRESSES:
                self._wrong.popitem(last=False)
        self._wrong.move_to_end(address)
        bucket.charge_units(1.0, now_s, most_debt=0.0)

    def note_right(self, client: Sequence[object], digest: bytes) -> None:
        """Notes that a key was valid from an address."""
        pair = self._address_of(client), digest
        if pair in self._known:
            self._known.move_to_end(pair)
            return
        self._known[pair] = None
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
