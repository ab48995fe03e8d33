"""How a group's ranks are to run; `resource_allocator.py` works out what that takes of this machine.

`WorkerSettings` inherits the fields of `RankProcessOptions`, as it does those of `EngineRunConfig`.
"""

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Interval
from pydantic import Field

from services.worker.orchestrator.process_group_manager import RankStart
from services.worker.rank_protocol.kv_messages import KVStoreConfig
from services.worker.rank_protocol.run_config import EngineRunConfig
from shared.setting_types import ZeroToHour

_GPU_STALL_S = 10.0  # at least: recorded graphs show no progress, and the first steps record them


@dataclass(frozen=True, kw_only=True)
class RankProcessOptions:
    """How the leader starts and watches the ranks' processes."""

    rank_start: RankStart = "auto"
    """`fork` forks ranks from one process that has torch loaded, `spawn` starts each on its own; `auto` forks
    on Linux."""
    rank_nice: Annotated[int, Interval(ge=0, le=19)] = 10
    """Niceness of the ranks, so that the processes that pass requests and tokens on come first; 0: none."""
    rank_token: Annotated[str, Field(repr=False)] = field(default="", repr=False)
    """The secret that ranks of other hosts have to prove."""
    rank_listen: str = ""
    """`host:port` where ranks of other hosts join."""
    stall_timeout_s: ZeroToHour = 2.0
    """Time without progress in a step after which ranks count as hung, without waits for a core or a disk; 0:
    only `RYZ_STEP_TIMEOUT_S` counts, as with ranks of other hosts. GPUs get at least 10 s."""
    rank_memory_growth_mb: Annotated[int, Interval(ge=0, le=2**24)] = 4096
    """MiB that a rank may take beyond its weights and its cache; 0: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEngineOptions:
    """How to run a model in rank processes.

    Attributes:
        run: What the ranks compute and with what.
        processes: How they are started and watched.
        kv_store: Where KV blocks go; None: nowhere. Ranks of other hosts have no store.
        instance_id: The leader's, for the ranks' log lines.
        group: The group's name, for the same.
        stop_timeout_s: How long ranks may take to end themselves.
    """

    run: EngineRunConfig
    processes: RankProcessOptions = field(default_factory=RankProcessOptions)
    kv_store: KVStoreConfig | None = None
    instance_id: str = ""
    group: str = ""
    stop_timeout_s: float = 2.0

    @property
    def stall_s(self) -> float:
        """How long ranks may stand still in a step; 0 if it is not watched."""
        stall_s = self.processes.stall_timeout_s
        return max(stall_s, _GPU_STALL_S) if stall_s and self.run.device == "cuda" else stall_s
