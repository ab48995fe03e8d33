"""A day's sum as it is stored, and what one record adds to it. Pure.

Integers only. Money is kept exactly, as tokens times the price of a million tokens, and rounded down to
millionths of the currency where it is shown: adding up many small requests loses nothing.
"""

from collections.abc import Callable
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec.structs import replace

from shared import streams
from shared.messages import PriceRecord, UsageRecord, UsageSum
from shared.messages.base import Wire

PRICED_TOKENS = 1_000_000  # a price is that of so many
COUNTED = (
    "requests", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "embedded_tokens",
    "queue_ms", "compute_ms",
)  # fmt: skip
Counts = tuple[int, ...]  # in the order of `COUNTED`, and last the exact money
NOTHING: Counts = (0,) * (len(COUNTED) + 1)


class SumName(NamedTuple):
    """Whose sum it is; in this order they are listed."""

    day: str
    tenant: str
    key_id: str
    model: str

    @property
    def subject(self) -> str:
        """Where the sum is stored."""
        return streams.usage_sum(self.day, self.tenant, f"{self.key_id}/{self.model}")


class StoredSum(Wire, frozen=True, kw_only=True):
    """A sum in the stream.

    Attributes:
        total: Without money.
        exact_money: Tokens times prices.
        read_to: Every record of the ledger up to this number that belongs to the sum is in it.
        ledger: Which ledger that was.
        frozen: Its tenant is erased: it changes no more, and is added to another sum.
        took: Number of the frozen sum that was added last; 0: there was none.
        moved: It was added to another one, and counts no more.
    """

    total: UsageSum
    exact_money: int = 0
    read_to: int = 0
    ledger: str = ""
    frozen: bool = False
    took: int = 0
    moved: bool = False

    @property
    def name(self) -> SumName:
        """Whose it is."""
        total = self.total
        return SumName(total.day, total.tenant, total.key_id, total.model)

    @property
    def shown(self) -> UsageSum:
        """With money in millionths of the currency, rounded down."""
        return replace(self.total, money=self.exact_money // PRICED_TOKENS)

    @property
    def tokens(self) -> int:
        """Tokens that limits count."""
        total = self.total
        return total.prompt_tokens + total.completion_tokens + total.embedded_tokens

    def plus(self, counts: Counts, read_to: int, ledger: str) -> "StoredSum":
        """The sum with more."""
        more = {name: getattr(self.total, name) + count for name, count in zip(COUNTED, counts, strict=False)}
        return replace(
            self,
            total=replace(self.total, **more),
            exact_money=self.exact_money + counts[-1],
            read_to=read_to,
            ledger=ledger,
        )

    def with_sum(self, other: "StoredSum", seq: int, read_to: int, ledger: str) -> "StoredSum":
        """The sum with another one, of that number, of which it has every record up to `read_to`."""
        counts = (*(getattr(other.total, name) for name in COUNTED), other.exact_money)
        return replace(self.plus(counts, read_to, ledger), took=seq)


def empty_sum(name: SumName) -> StoredSum:
    """A sum of nothing."""
    return StoredSum(total=UsageSum(day=name.day, tenant=name.tenant, key_id=name.key_id, model=name.model))


def counts_of(record: UsageRecord, price: PriceRecord | None) -> Counts:
    """What a record adds if it is the first of its request."""
    new_tokens = record.prompt_tokens - record.cached_tokens + record.embedded_tokens
    money = 0
    if price is not None:
        money = (
            new_tokens * price.prompt
            + record.cached_tokens * price.cached
            + record.completion_tokens * price.completion
        )
    return (
        1, record.prompt_tokens, record.cached_tokens, record.completion_tokens, record.reasoning_tokens,
        record.embedded_tokens, record.queue_ms, record.compute_ms, money,
    )  # fmt: skip


def name_of(record: UsageRecord, time_zone_of: Callable[[str], str]) -> SumName:
    """The sum of a record; its day is that of its end, in the tenant's time zone."""
    zone = _zone(time_zone_of(record.tenant))
    day = datetime.fromtimestamp(record.ended_ms / 1000, zone).date().isoformat()
    return SumName(day, record.tenant, record.key_id, record.model)


def noon_of(record: UsageRecord, time_zone_of: Callable[[str], str]) -> int:
    """Noon in UTC of a record's day in the tenant's time zone, in milliseconds."""
    day = date.fromisoformat(name_of(record, time_zone_of).day)
    return int(datetime(day.year, day.month, day.day, 12, tzinfo=UTC).timestamp()) * 1000


def today(zone: str = "UTC", now_s: float | None = None) -> str:
    """The day there."""
    now = datetime.now(UTC) if now_s is None else datetime.fromtimestamp(now_s, UTC)
    return now.astimezone(_zone(zone)).date().isoformat()


@lru_cache(maxsize=1024)
def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # this host does not know it
        return ZoneInfo("UTC")
