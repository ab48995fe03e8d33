"""All sums in memory, by day, tenant, key and model: lists them, and adds them up for limits. Pure."""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping

from services.kvstate.usage.erased import UsageErasure
from services.kvstate.usage.stored_sums import PRICED_TOKENS, StoredSum, SumName
from shared.messages import UsageSum

PAGE = 500
_LAST = "\U0010ffff"


class UsageSums:
    """The sums that are known, each with its number in the stream.

    Attributes:
        seen: Number of the newest message of the stream that is in here.
    """

    def __init__(self) -> None:
        self.seen = 0
        self._sums: dict[SumName, tuple[StoredSum, int]] = {}
        self._erasures: dict[str, tuple[UsageErasure, int]] = {}
        self._names: list[SumName] = []
        self._sorted = True

    def __len__(self) -> int:
        return len(self._sums)

    def find(self, name: SumName) -> tuple[StoredSum | None, int]:
        """A sum and its number; None and 0 if there is none."""
        return self._sums.get(name, (None, 0))

    def put(self, stored: StoredSum, seq: int) -> None:
        """Takes a sum that was read or written; an older one than is known has no effect."""
        name = stored.name
        erasure, _ = self.erasure(name.tenant)
        if erasure is not None and seq <= erasure.moved_to:
            return
        if stored.moved:
            self.drop(name)
            return
        known = self._sums.get(name)
        if known is None:
            self._names.append(name)
            self._sorted = False
        elif known[1] >= seq:
            return
        self._sums[name] = stored, seq

    def drop(self, name: SumName) -> None:
        """Forgets a sum that was added to another one."""
        if self._sums.pop(name, None) is not None:
            self._names.remove(name)

    def names_of(self, tenant: str) -> list[SumName]:
        """The sums of a tenant, in order."""
        return [name for name in self._in_order() if name.tenant == tenant]

    def put_erasure(self, erasure: UsageErasure, seq: int) -> None:
        """Takes the mark of an erasure; sums that it has moved are forgotten."""
        known = self._erasures.get(erasure.tenant)
        if known is not None and known[1] >= seq:
            return
        self._erasures[erasure.tenant] = erasure, seq
        for name in self.names_of(erasure.tenant) if erasure.moved_to else ():
            if self._sums[name][1] <= erasure.moved_to:
                self.drop(name)

    def erasure(self, tenant: str) -> tuple[UsageErasure | None, int]:
        """The mark of a tenant's erasure and its number; None and 0 if there is none."""
        return self._erasures.get(tenant, (None, 0))

    def erasures(self) -> list[tuple[UsageErasure, int]]:
        """The marks of all erasures."""
        return list(self._erasures.values())

    def replace_all(self, fresh: "UsageSums") -> None:
        """Takes what was read anew."""
        self.seen, self._sums, self._names, self._sorted = fresh.seen, fresh._sums, fresh._names, False
        self._erasures = fresh._erasures

    def before(self, first_days: Mapping[str, str]) -> list[SumName]:
        """The sums of tenants that are of an earlier day than the first one that each of these keeps.

        Those of tenants that are being erased are not among them: they are moved.
        """
        if not first_days:
            return []
        return [
            one
            for one in self._sums
            if one.day < first_days.get(one.tenant, "") and one.tenant not in self._erasures
        ]

    def drop_all(self, names: Collection[SumName]) -> None:
        """Forgets sums that are over."""
        for name in names:
            self._sums.pop(name, None)
        self._names = [one for one in self._names if one in self._sums]

    def forget_before(self, day: str) -> None:
        """Forgets days before this one, which the stream drops as well."""
        for name in [one for one in self._sums if one.day < day]:
            del self._sums[name]
        self._names = [one for one in self._names if one.day >= day]

    def page(self, tenant: str, since: str, until: str, after: str) -> tuple[list[UsageSum], str]:
        """The next sums, and where they end; empty at the end.

        Args:
            tenant: Empty: all.
            since: First day; empty: of all.
            until: Last day; empty: of all.
            after: Where the page before ended.
        """
        names = self._in_order()
        begin = bisect_left(names, (since, "", "", ""))
        if after:
            begin = max(begin, bisect_right(names, tuple(after.split("/", 3))))
        found: list[UsageSum] = []
        for name in names[begin:]:
            if until and name.day > until:
                break
            if tenant and name.tenant != tenant:
                continue
            if len(found) == PAGE:
                last = found[-1]
                return found, f"{last.day}/{last.tenant}/{last.key_id}/{last.model}"
            found.append(self._sums[name][0].shown)
        return found, ""

    def used(self, tenant: str, key_id: str, since_day: str, until_day: str) -> tuple[int, int]:
        """Tokens and money (in millionths of the currency) of some days.

        Args:
            tenant: Whose.
            key_id: Of one key; empty: of all keys and of calls without one.
            since_day: The first day.
            until_day: The last one.
        """
        names = self._in_order()
        tokens = money = 0
        at = bisect_left(names, (since_day, tenant, key_id, ""))
        while at < len(names) and names[at].day <= until_day:
            name = names[at]
            if name.tenant > tenant:  # on to the next day
                at = bisect_left(names, (name.day, _LAST, "", ""))
                continue
            if name.tenant < tenant:
                at = bisect_left(names, (name.day, tenant, key_id, ""))
                continue
            if not key_id or name.key_id == key_id:
                stored = self._sums[name][0]
                tokens += stored.tokens
                money += stored.exact_money
            at += 1
        return tokens, money // PRICED_TOKENS

    def _in_order(self) -> list[SumName]:
        if not self._sorted:
            self._names.sort()
            self._sorted = True
        return self._names
