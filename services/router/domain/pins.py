"""Keeps the pins: sessions whose turns all go to one group. `policies/choice.py` applies them."""

from collections.abc import Iterable

Pin = tuple[str, str, str]  # tenant, session id, group


class PinTable:
    """The known pins of all tenants; bounded. A change stands against a list that was asked for before it."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._groups: dict[tuple[str, str], str] = {}
        self._changes: dict[tuple[str, str], str] = {}  # changes since the list was asked for

    def __len__(self) -> int:
        return len(self._groups)

    def group_of(self, tenant: str, session_id: str) -> str:
        """The group that the session is bound to; an empty text if it is free."""
        return self._groups.get((tenant, session_id), "") if session_id else ""

    def set_pin(self, tenant: str, session_id: str, group: str) -> bool:
        """A pin changed; an empty group frees the session. False: there are too many to keep it."""
        if len(self._changes) < self._max_entries or (tenant, session_id) in self._changes:
            self._changes[tenant, session_id] = group
        if not group:
            self._groups.pop((tenant, session_id), None)
            return True
        if len(self._groups) >= self._max_entries and (tenant, session_id) not in self._groups:
            return False
        self._groups[tenant, session_id] = group
        return True

    def start_list(self) -> None:
        """The list of all pins is asked for now."""
        self._changes.clear()

    def replace_list(self, pins: Iterable[Pin]) -> bool:
        """Replaces all pins, keeping updates received since the request; False if the list was truncated."""
        groups = {(tenant, session_id): group for tenant, session_id, group in pins}
        groups.update(self._changes)
        kept = [(key, group) for key, group in groups.items() if group]
        self._groups = dict(kept[: self._max_entries])
        return len(kept) <= self._max_entries
