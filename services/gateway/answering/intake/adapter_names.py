"""Names by which requests reach adapters: `base:name`, with another name of the base, or the name alone.

A model or an alias of that name comes first. The answer names `base:name`.
"""

from collections.abc import Mapping

from shared.adapters.register import AdapterRegister


class AdapterNames:
    """Finds adapters by name.

    Args:
        register: The adapters that are known.
        aliases: Models by their other names.
    """

    def __init__(self, register: AdapterRegister, aliases: Mapping[str, str]) -> None:
        self.register = register
        self._aliases = aliases

    def find(self, name: str) -> str | None:
        """The full name of the adapter that a name means if no model has it; None if it means none."""
        if not len(self.register):
            return None
        base, colon, short = name.rpartition(":")
        if not colon:
            adapter = self.register.named(name)
        else:
            adapter = self.register.find(name)
            if adapter is None and base in self._aliases:
                adapter = self.register.find(f"{self._aliases[base]}:{short}")
        return None if adapter is None else adapter.model

    def label_of(self, model: str) -> str:
        """The name under which requests count in metrics: adapters count for their base."""
        if ":" not in model:
            return model
        adapter = self.register.find(model)
        return model if adapter is None else adapter.base
