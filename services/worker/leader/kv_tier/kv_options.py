"""The options of the KV tier."""

from dataclasses import dataclass

from services.worker.domain.blocks.transfer_costs import FetchMode


@dataclass(frozen=True, slots=True)
class KVOptions:
    """Options of a leader's KV tier; times in seconds.

    Attributes:
        fetch: Whether stored blocks are fetched: by measured costs, always, or never.
        write: Whether full blocks are written.
        min_tokens: Tokens of a prompt that must be missing here before the store is asked.
        lookup_timeout_s: For one question to the KV state service.
        fetch_timeout_s: For which a sequence waits for a fetch.
        commit_interval_s: Between two commits of written blocks.
        commit_timeout_s: Time limit of one commit.
        failures: Failures in a row after which the store is taken for away.
        probe_s: Between two probes of a store that is away.
        host_dir: Directory of the host tier; empty: there is none.
    """

    fetch: FetchMode = "auto"
    write: bool = True
    min_tokens: int = 32
    lookup_timeout_s: float = 0.05
    fetch_timeout_s: float = 1.0
    commit_interval_s: float = 0.1
    commit_timeout_s: float = 2.0
    failures: int = 3
    probe_s: float = 0.25
    host_dir: str = ""
