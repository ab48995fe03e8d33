"""Runs the process of a group in the foreground: start, one line when it is ready, drain, end."""

import asyncio
import os
import signal
from typing import Any

from cli.console import CommandError, err, fail, out
from cli.stack.host.private import OWN_UMASK
from cli.stack.probes import Probes
from cli.stack.service_plan import GRACE_S, WORKERS
from cli.stack.state import log_tail
from cli.stack.supervision.process import ServiceProcess, ServiceSpec, explain_exit
from cli.status.query import query_status
from cli.worker.remote_group import GroupPlan
from shared.address import redact
from shared.host.own_python import module_command

_POLL_S = 0.1
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def run_group(plan: GroupPlan) -> None:
    """Run the group until a signal, or until it is drained.

    Raises:
        CommandError: It cannot start, or has ended by itself.
    """
    os.umask(OWN_UMASK)
    plan.state_dir.make()
    probes = Probes()
    spec = ServiceSpec(
        f"worker-{plan.group}",
        module_command("services.worker"),
        probes.admin(plan.admin_port),
        WORKERS,
        GRACE_S[WORKERS] + _drain_s(),
        plan.env,
        model=plan.model,
    )
    process, stop = ServiceProcess(spec, plan.log), asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in _SIGNALS:
        loop.add_signal_handler(signum, stop.set)
    try:
        await process.start()
        ended, asked = asyncio.create_task(process.wait()), asyncio.create_task(stop.wait())
        if await _is_ready(plan, spec, ended, asked):
            out.print(await _ready_line(plan), soft_wrap=True)
            await asyncio.wait({ended, asked}, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            await _end(process, ended, spec.grace_s, stop)
        elif ended.result() or not asked.done():
            _explain(plan, process, ended.result())
        asked.cancel()
    finally:
        process.kill()
        await probes.close()
    out.print(f"Group {plan.group} has ended.")


def _drain_s() -> float:
    """How long the leader may drain, by its setting; a value that it refuses counts as the default."""
    try:
        return float(os.environ.get("RYZ_DRAIN_TIMEOUT_S") or 5.0)
    except ValueError:
        return 5.0


async def _is_ready(
    plan: GroupPlan, spec: ServiceSpec, ended: "asyncio.Task[int]", asked: "asyncio.Task[Any]"
) -> bool:
    """Wait until the group takes requests; False: it has ended, or is to end.

    Raises:
        CommandError: It was not ready in time.
    """
    deadline = asyncio.get_running_loop().time() + plan.start_timeout_s
    while not await spec.probe():
        await asyncio.wait({ended, asked}, timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED)
        if ended.done() or asked.done():
            return False
        if asyncio.get_running_loop().time() > deadline:
            fail(
                f"Group {plan.group} was not ready within {plan.start_timeout_s:g} s (`--start-timeout`). "
                f"{plan.log} ends with:\n{log_tail(plan.log)}"
            )
    return True


async def _ready_line(plan: GroupPlan) -> str:
    """Say what has joined: the guest by name, with what it can and cannot do."""
    report = await query_status(plan.nats_url, plan.state_dir)
    details = (one.detail for one in report.of_kind("worker") if one.detail.get("group") == plan.group)
    guest: dict[str, Any] = next(details, {}).get("guest") or {}
    can, lacks = (", ".join(guest.get(name, ())) or "nothing" for name in ("can", "lacks"))
    return (
        f"Ready: group {plan.group} serves {plan.model} by {guest.get('name', 'a guest')} at "
        f"{redact(plan.remote)} (can: {can}; cannot: {lacks}; broker {redact(plan.nats_url)}, log "
        f"{plan.log}). Ctrl-C ends it."
    )


async def _end(
    process: ServiceProcess, ended: "asyncio.Task[int]", grace_s: float, stop: asyncio.Event
) -> None:
    """Drain the group; a second signal cuts the drain short."""
    err.print("Ending: running requests go on in other groups; Ctrl-C again ends it at once.")
    stop.clear()
    process.terminate()
    again = asyncio.create_task(stop.wait())
    await asyncio.wait({ended, again}, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
    again.cancel()
    process.kill()
    await ended


def _explain(plan: GroupPlan, process: ServiceProcess, code: int) -> None:
    """Raise why the group has ended by itself; nothing if it was drained."""
    if code == 0:
        return
    problem = process.start_problem()
    if problem:
        raise CommandError(f"Group {plan.group} did not start: {problem}", code if code > 0 else 1)
    raise CommandError(
        f"Group {plan.group} has ended ({explain_exit(code)}). {plan.log} ends with:\n{log_tail(plan.log)}"
    )
