"""Remembers requests and sessions for a router. Losing it costs a little work, no more."""

import msgspec

from services.router.domain.expiring import ExpiringMap
from services.router.domain.groups.balance import DecayingCounts
from services.router.domain.models.book import ModelBook
from services.router.domain.pins import PinTable
from services.router.domain.policies.parties import Contests, PartyCredits
from services.router.domain.running_units import AttemptKey
from services.router.domain.session_memory import SessionMemory
from services.router.incoming import Incoming
from services.router.settings import RouterSettings
from shared.accounts.register import AccountRegister
from shared.adapters.register import AdapterRegister


class Forward(msgspec.Struct, frozen=True, gc=False):
    """A request on its way to a group, kept until it is certain that the group has it."""

    incoming: Incoming
    group: str
    count: int  # groups that it was offered to, this one included
    number: int  # of this sending; those of a router differ


class RouterState:
    """All is bounded: maps in entries, all but the pins in time, and the one with requests in bytes.

    Attributes:
        duplicates: The group that an attempt was given to. A caller publishes a request again if no group
            answers in time; the leader that has it answers the copy, another one would compute it again.
        forwards: Requests on their way to a group, by `Incoming.key`.
        sessions: Where the KV of sessions is.
        pins: Sessions that are bound to a group.
        balance: Requests by group, fading.
        contests: Which requests go to a full group.
        credits: Of parties at groups.
        models: What hosts offer, and the requests that wait for it.
        adapters: What the register of adapters has.
        accounts: Tenants, keys and prices.
    """

    def __init__(self, settings: RouterSettings) -> None:
        constants, max_entries = settings.constants, settings.constants.duplicates_max
        self.duplicates: ExpiringMap[AttemptKey, str] = ExpiringMap(
            ttl_s=constants.duplicates_s, max_entries=max_entries
        )
        self.forwards: ExpiringMap[str, Forward] = ExpiringMap(
            ttl_s=constants.forward_s, max_entries=max_entries, max_cost=constants.forward_max_bytes
        )
        self.sessions = SessionMemory(ttl_s=constants.sessions_s, max_entries=constants.sessions_max)
        self.pins = PinTable(settings.router_pins_max)
        self.balance = DecayingCounts(constants.fleet.half_life_s)
        self.contests = Contests(constants.contested_slots_per_s)
        self.credits = PartyCredits()
        self.models = ModelBook()
        self.adapters = AdapterRegister()
        self.accounts = AccountRegister()

    def expire(self, now: float) -> None:
        """Drops what is too old, also when no requests come."""
        self.duplicates.expire(now)
        self.forwards.expire(now)
        self.sessions.expire(now)
