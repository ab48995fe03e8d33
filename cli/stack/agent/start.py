"""Makes what acts for a stack on the bus: the agent of models that come and go, and that of adapters."""

import logging
import os
import sys

import structlog

from cli.console import StartReport
from cli.stack.agent.agent import HostAgent
from cli.stack.agent.declared_adapters import (
    DeclaredAdapters,
    adapter_bytes,
    read_files,
    read_null_files,
)
from cli.stack.agent.offers import AgentPlan
from cli.stack.fleet.one_more import find_one_more
from cli.stack.machine import Settled, is_null
from cli.stack.memory_needs import SERVICES_BYTES
from cli.stack.options import UpOptions
from cli.stack.plan import StackPlan
from cli.stack.supervision.stack import Stack

OWN_BROKER = "local"  # the host's name where no other one is on the broker


class StackAgents:
    """Call `begin` before the stack is started, and `close` before it ends."""

    def __init__(
        self, options: UpOptions, settled: Settled, plan: StackPlan, stack: Stack, report: StartReport
    ) -> None:
        self._host = host_agent(options, settled, plan, stack, report)
        read = read_null_files if is_null(options, settled.models) else read_files
        self._adapters = DeclaredAdapters(settled.models, report.note, read, adapter_bytes(os.environ))
        if self._host is not None or self._adapters.models:
            _quiet_bus()

    def begin(self, url: str) -> None:
        """Connect to the broker as soon as it is there, and act until `close`."""
        if self._host is not None:
            self._host.begin(url)
        self._adapters.begin(url)

    async def await_started(self, timeout_s: float) -> None:
        """Wait until the adapters of the models file are registered, or are not."""
        await self._adapters.await_started(timeout_s)

    async def close(self) -> None:
        """End what it does; groups that are ending go on, and end with the stack."""
        await self._adapters.close()
        if self._host is not None:
            await self._host.close()


def _quiet_bus() -> None:
    quiet = structlog.make_filtering_bound_logger(logging.WARNING)  # a broker may be away
    structlog.configure(wrapper_class=quiet, logger_factory=structlog.PrintLoggerFactory(sys.stderr))


def host_agent(
    options: UpOptions, settled: Settled, plan: StackPlan, stack: Stack, report: StartReport
) -> HostAgent | None:
    """Return the agent; None if all groups run as long as the stack."""
    if settled.on_demand is None:
        return None
    running, on_demand = [spec for spec in plan.specs if spec.model], settled.on_demand
    host_plan = AgentPlan(
        host=options.stack or OWN_BROKER,
        plan=on_demand,
        models=settled.models,
        needs=settled.needs,
        leaders=[*running, *plan.sleeping],
        running=running,
        find_more=lambda entry, served: find_one_more(options, entry, on_demand, served),
        more_leaders=plan.more_leaders,
    )
    return HostAgent(host_plan, stack, report, SERVICES_BYTES)
