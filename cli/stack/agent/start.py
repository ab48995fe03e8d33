"""Makes the agent of a stack whose models come and go."""

import logging
import sys

import structlog

from cli.console import StartReport
from cli.stack.agent.agent import HostAgent
from cli.stack.agent.offers import HostPlan
from cli.stack.fleet.one_more import find_one_more
from cli.stack.machine import Settled
from cli.stack.memory_needs import SERVICES_BYTES
from cli.stack.options import UpOptions
from cli.stack.plan import StackPlan
from cli.stack.supervision.stack import Stack

OWN_BROKER = "local"  # the host's name where no other one is on the broker


def host_agent(
    options: UpOptions, settled: Settled, plan: StackPlan, stack: Stack, report: StartReport
) -> HostAgent | None:
    """Return the agent; None if all groups run as long as the stack."""
    if settled.on_demand is None:
        return None
    quiet = structlog.make_filtering_bound_logger(logging.WARNING)  # of the bus; a broker may be away
    structlog.configure(wrapper_class=quiet, logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    running, on_demand = [spec for spec in plan.specs if spec.model], settled.on_demand
    host_plan = HostPlan(
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
