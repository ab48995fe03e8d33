"""The copy of tenants and keys, and how far it can be trusted while the KV state service is away. Pure.

What was read stands for `KEEP_S` after the last answer of the service. In that time nothing can be changed
that the gateway would not hear: who changes a record is the service that is away. An hour bounds what a
gateway does on its own that is cut off from the service and not from its callers.
"""

import math
from collections.abc import Callable

from shared.accounts.register import AccountRegister
from shared.errors import Unavailable

KEEP_S = 3600.0
# A key that is not in a copy older than this may be new: its caller gets a 503 and may retry. The copy is
# compared with the service every ten seconds.
SURE_S = 30.0
RETRY_S = 5.0


class AccountCopy:
    """The copy and its age.

    Args:
        register: The records.
        read_at: Returns when the service last answered, by the clock; -inf: it has not.
        clock: Seconds that only grow.
    """

    def __init__(
        self, register: AccountRegister, read_at: Callable[[], float], clock: Callable[[], float]
    ) -> None:
        self.register = register
        self._read_at = read_at
        self._clock = clock

    @property
    def was_read(self) -> bool:
        """Returns whether the service has answered since the gateway started."""
        return self._read_at() > -math.inf

    @property
    def age_s(self) -> float:
        """Seconds since the service has answered; infinite: it has not."""
        return self._clock() - self._read_at()

    @property
    def is_usable(self) -> bool:
        """Returns whether keys of the copy are valid."""
        return self.age_s <= KEEP_S

    @property
    def is_sure(self) -> bool:
        """Returns whether a key that is not in the copy does not exist."""
        return self.register.is_current and self.age_s <= SURE_S

    def away(self) -> Unavailable:
        """The error for a call that cannot be decided without the service."""
        return Unavailable(
            "tenants and keys cannot be read: the KV state service does not answer; retry in a moment",
            reason="accounts_away",
            retry_after_s=RETRY_S,
        )
