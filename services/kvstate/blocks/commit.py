"""The state of one commit of KV blocks while the tier applies quotas and limits to it."""

from dataclasses import dataclass, field

from services.kvstate.blocks.store import WrittenBlocks


@dataclass(slots=True)
class BlockCommit:
    """A commit under way: for each entry the names that stay, their sizes, and which are new."""

    entries: list[WrittenBlocks]
    names: list[list[bytes]] = field(default_factory=list)
    sizes: list[list[int]] = field(default_factory=list)
    fresh: list[list[bool]] = field(default_factory=list)
    gone: set[bytes] = field(default_factory=set)  # registered and deleted again
    over_quota: set[int] = field(default_factory=set)
    evicted: int = 0
    pause_ms: int = 0

    @property
    def all_names(self) -> list[bytes]:
        """All names of the commit: none is evicted to make room for another one."""
        return list({name for names in self.names for name in names})
