"""Makes the agent of a stack whose models come and go."""

from cli.console import StartReport
from cli.stack.agent.agent import HostAgent
from cli.stack.agent.offers import HostPlan
from cli.stack.machine import Settled
from cli.stack.memory_needs import SERVICES_BYTES
from cli.stack.options import UpOptions
from cli.stack.plan import StackPlan
from cli.stack.stack import Stack


def host_agent(
    options: UpOptions, settled: Settled, plan: StackPlan, stack: Stack, report: StartReport
) -> HostAgent | None:
    """Return the agent; None if all groups run as long as the stack."""
    if settled.on_demand is None:
        return None
    running = [spec for spec in plan.specs if spec.model]
    host = options.stack or "local"
    return HostAgent(
        HostPlan(host, settled.on_demand, settled.models, settled.needs, [*running, *plan.sleeping], running),
        stack,
        report,
        SERVICES_BYTES,
    )
