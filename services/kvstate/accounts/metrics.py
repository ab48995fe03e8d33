"""Gauges of tenants and keys, from the service's copy of the register."""

import time
from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.accounts.register import AccountRegister

TENANT_STATES = ("active", "suspended")
KEY_KINDS = ("tenant", "admin", "bus_user")
KEY_STATES = ("valid", "expired", "suspended")


class AccountCollector(Collector):
    """Counts tenants and keys when it is asked. Replicas show the same values: take the maximum.

    Nothing is shown before the register was read, so that no dashboard shows a stack without keys.

    Args:
        register: The copy.
        now: Seconds since 1970.
    """

    def __init__(self, register: AccountRegister, now: Callable[[], float] = time.time) -> None:
        self._register = register
        self._now = now

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client`."""
        register = self._register
        if not register.changed_at:
            return
        records = register.tenants()
        suspended = {one.tenant for one in records if one.suspended}
        tenants = GaugeMetricFamily(
            "ryz_kvstate_tenants", "Tenants that have a record, `active` or `suspended`.", labels=["state"]
        )
        for state, count in zip(TENANT_STATES, (len(records) - len(suspended), len(suspended)), strict=True):
            tenants.add_metric([state], count)
        yield tenants
        keys = GaugeMetricFamily(
            "ryz_kvstate_keys",
            "Stored keys of a `tenant` or an `admin`, and bus users: `valid`, `expired`, or `suspended`.",
            labels=["kind", "state"],
        )
        counts = self._count_keys(suspended)
        for kind in KEY_KINDS:
            for state in KEY_STATES:
                keys.add_metric([kind, state], counts[kind, state])
        yield keys
        yield GaugeMetricFamily(
            "ryz_kvstate_keys_required",
            "1 while stored rules refuse requests without a key.",
            value=int(register.rules.keys_required),
        )

    def _count_keys(self, suspended: set[str]) -> Counter[tuple[str, str]]:
        now_s, counts = self._now(), Counter[tuple[str, str]]()
        for key in self._register.keys_of():
            expired = key.expires_s and now_s >= key.expires_s
            off = key.tenant in suspended or (key.bus_user is not None and key.bus_user.suspended)
            state = "expired" if expired else "suspended" if off else "valid"
            kind = "admin" if key.scopes.admin else "tenant" if key.bus_user is None else "bus_user"
            counts[kind, state] += 1
        return counts
