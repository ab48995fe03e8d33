"""A copy of the register of adapters, for parts that resolve names of models. Pure."""

from collections import OrderedDict
from collections.abc import Iterable

from shared.messages import Adapter, AdapterChanged

_MAX_FORMER = 1024  # adapters that were replaced or removed, for answers that began with them


class AdapterRegister:
    """The adapters of all bases, as far as they were read.

    Attributes:
        version: Of what was read; 0: nothing was, or the register was always empty.
        is_current: Whether it was read, and no change is known to be missing. What is not in it may then be
            said not to exist.
    """

    def __init__(self) -> None:
        self.version = 0
        self.is_current = False
        self._by_base: dict[str, dict[str, Adapter]] = {}
        self._bases_of: dict[str, set[str]] = {}  # by the adapter's name
        self._former: OrderedDict[tuple[str, str], Adapter] = OrderedDict()  # by base and fingerprint

    def __len__(self) -> int:
        return sum(map(len, self._by_base.values()))

    def find(self, model: str) -> Adapter | None:
        """The adapter of a name `base:name`."""
        base, _, name = model.rpartition(":")
        return self._by_base.get(base, {}).get(name)

    def of_base(self, base: str) -> list[Adapter]:
        """The adapters of a base, by name."""
        adapters = self._by_base.get(base, {})
        return [adapters[name] for name in sorted(adapters)]

    def list_all(self) -> list[Adapter]:
        """All adapters, by base and name."""
        return [adapter for base in sorted(self._by_base) for adapter in self.of_base(base)]

    def named(self, name: str) -> Adapter | None:
        """The adapter that alone has this name, whatever its base; None if there are none or several."""
        bases = self._bases_of.get(name, ())
        if len(bases) != 1:
            return None
        (base,) = bases
        return self._by_base[base][name]

    def former(self, base: str, fingerprint: str) -> Adapter | None:
        """An adapter with that content which was replaced or removed lately."""
        return self._former.get((base, fingerprint))

    def replace_all(self, adapters: Iterable[Adapter], version: int) -> None:
        """Takes in the whole register."""
        before = self.list_all()
        self._by_base, self._bases_of = {}, {}
        for adapter in adapters:
            self._put(adapter)
        for adapter in before:
            kept = self.find(adapter.model)
            if kept is None or kept.fingerprint != adapter.fingerprint:
                self._remember(adapter)
        self.version, self.is_current = version, True

    def apply(self, change: AdapterChanged) -> bool:
        """Takes in one change; False if others are missing, and the register has to be read again."""
        if change.version <= self.version:
            return True
        if change.before != self.version or not self.is_current:
            self.is_current = False
            return False
        before = self._by_base.get(change.base, {}).get(change.name)
        if before is not None and (change.put is None or change.put.fingerprint != before.fingerprint):
            self._remember(before)
        if change.put is not None:
            self._put(change.put)
        elif before is not None:
            self._remove(before)
        self.version = change.version
        return True

    def _put(self, adapter: Adapter) -> None:
        self._by_base.setdefault(adapter.base, {})[adapter.name] = adapter
        self._bases_of.setdefault(adapter.name, set()).add(adapter.base)

    def _remove(self, adapter: Adapter) -> None:
        base, name = adapter.base, adapter.name
        del self._by_base[base][name]
        if not self._by_base[base]:
            del self._by_base[base]
        self._bases_of[name].discard(base)
        if not self._bases_of[name]:
            del self._bases_of[name]

    def _remember(self, adapter: Adapter) -> None:
        key = adapter.base, adapter.fingerprint
        self._former[key] = adapter
        self._former.move_to_end(key)
        if len(self._former) > _MAX_FORMER:
            self._former.popitem(last=False)
