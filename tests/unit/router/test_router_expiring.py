"""The bounded map keeps what a plain list of entries would keep."""

from hypothesis import given
from hypothesis import strategies as st

from services.router.domain.expiring import ExpiringMap

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "pop", "get", "expire"]),
        st.integers(0, 4),
        st.integers(0, 6),
        st.sampled_from([0.0, 0.2, 0.9]),
    ),
    max_size=60,
)


class PlainMap:
    """Entries in the order of their `put`: key, value, end, cost."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int, float, int]] = []

    def find(self, key: int, now: float) -> int | None:
        return next((value for k, value, end, _ in self.entries if k == key and end > now), None)

    def pop(self, key: int, now: float) -> int | None:
        value = self.find(key, now)
        self.entries = [entry for entry in self.entries if entry[0] != key]
        return value

    def put(self, key: int, value: int, now: float, cost: int) -> None:
        self.pop(key, now)
        self.entries.append((key, value, now + 1.0, cost))
        while self.entries and (
            len(self.entries) > 3 or sum(e[3] for e in self.entries) > 10 or self.entries[0][2] <= now
        ):
            del self.entries[0]

    def expire(self, now: float) -> None:
        while self.entries and self.entries[0][2] <= now:
            del self.entries[0]


@given(STEPS)
def test_it_keeps_what_a_plain_list_keeps(steps: list[tuple[str, int, int, float]]) -> None:
    table: ExpiringMap[int, int] = ExpiringMap(ttl_s=1.0, max_entries=3, max_cost=10)
    plain, now = PlainMap(), 0.0
    for number, (what, key, cost, pause) in enumerate(steps):
        now += pause
        if what == "put":
            table.put(key, number, now, cost)
            plain.put(key, number, now, cost)
        elif what == "pop":
            assert table.pop(key, now) == plain.pop(key, now)
        elif what == "expire":
            table.expire(now)
            plain.expire(now)
        assert [table.get(one, now) for one in range(5)] == [plain.find(one, now) for one in range(5)]
        assert (len(table), table.cost) == (len(plain.entries), sum(entry[3] for entry in plain.entries))
