"""The stack that a benchmark measures, as it is handed to it. The caller starts and ends it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class RunningStack:
    """A stack that is ready.

    Attributes:
        url: Address of its gateway.
        model: Name of the model it serves.
        pids: Process id of each service, by the service's name.
        nats_urls: URLs of its broker, by user.
        grpc: Where it answers by gRPC; empty: nowhere.
        services_now: Reads the process id of each service and whether it is ready, after restarts as well.
    """

    url: str
    model: str
    pids: Mapping[str, int] = field(default_factory=dict)
    nats_urls: Mapping[str, str] = field(default_factory=dict)
    grpc: str = ""
    services_now: Callable[[], Mapping[str, tuple[int, bool]]] = dict


class StackStarter(Protocol):
    """Starts a stack for the time of a `with` block."""

    def __call__(
        self, options: Mapping[str, object], settings: Mapping[str, str] | None = None, *, timeout_s: float
    ) -> AbstractContextManager[RunningStack]:
        """Blocks until the stack is ready.

        Args:
            options: Options of `ryz up` with their values.
            settings: The `RYZ_` variables of all services.
            timeout_s: Limit on the start, in seconds.
        """
        ...


def worker_groups(pids: Mapping[str, int]) -> Sequence[str]:
    """Return the names of the worker groups among a stack's services."""
    return [name.removeprefix("worker-") for name in pids if name.startswith("worker-")]
