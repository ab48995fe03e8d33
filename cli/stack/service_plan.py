"""Plans the process of one service: its command, the fork server it comes from, and how it ends. Pure."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from cli.stack.supervision.process import ServiceSpec
from shared.host.own_python import module_command

# Fork servers, and what they import. Those of the control plane have no torch in their memory; the two import
# side by side.
CONTROL_FORKS, WORKER_FORKS = "control", "worker"

# Phases of the end, at most nine seconds in all: seconds that a service may drain, and until it is killed.
# A worker needs time for its ranks after the drain; it has little to drain once the gateway has ended.
# RYZ_DRAIN_TIMEOUT_S replaces the drain of gateways and workers.
GATEWAY, ROUTER, WORKERS, KVSTATE, SERVERS = range(5)
DRAIN_S = {GATEWAY: 2.5, ROUTER: 0.4, WORKERS: 1.2, KVSTATE: 0.4}
GRACE_S = {GATEWAY: 3.2, ROUTER: 0.8, WORKERS: 3.2, KVSTATE: 0.8, SERVERS: 1.0}


def admin_address(port: int) -> dict[str, str]:
    """Return the settings of a service's admin endpoint."""
    return {"RYZ_ADMIN_PORT": str(port), "RYZ_ADMIN_HOST": "127.0.0.1"}


def plan_service(
    name: str, env: Mapping[str, str], probe: Callable[[], Awaitable[bool]], drain: str, *, model: str = ""
) -> ServiceSpec:
    """Return a service's process.

    Args:
        name: Begins with its kind, such as `router-2`.
        drain: The given drain time as text; empty: the phase's.
        model: The name of the model that it serves; empty: none.
    """
    kind = name.partition("-")[0]
    phase = {"gateway": GATEWAY, "router": ROUTER, "worker": WORKERS, "kvstate": KVSTATE}[kind]
    drain_s, grace_s = DRAIN_S[phase], GRACE_S[phase]
    if drain and phase in {GATEWAY, WORKERS}:
        with suppress(ValueError):  # the service refuses it and names the variable
            grace_s += max(0.0, float(drain)) - drain_s
    else:
        drain = str(drain_s)
    return ServiceSpec(
        name,
        module_command(f"services.{kind}"),
        probe,
        phase,
        grace_s,
        {**env, "RYZ_DRAIN_TIMEOUT_S": drain},
        module=f"services.{kind}.__main__",
        forked_from=WORKER_FORKS if kind == "worker" else CONTROL_FORKS,
        model=model,
    )
