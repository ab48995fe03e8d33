"""Kills or freezes random ranks and leaders of a running fleet, one after another."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable

from benchmarks.failover.figures import InjectedFault, Victim
from benchmarks.failover.fleet import FleetProbe, mean_fetch_s
from benchmarks.lib.measuring import BenchError, Progress
from benchmarks.stack_plans import FailoverPlan
from shared.errors import RyzError

_SETTLE_S = 0.5
_FROZEN_S = 1.5  # at least; on a busy machine it takes longer until a router gives a frozen leader up


async def inject_faults(
    fleet: FleetProbe,
    plan: FailoverPlan,
    faults: list[InjectedFault],
    progress: Progress,
    describe: Callable[[], str],
) -> str:
    """Inject the plan's faults one after another, each when the group of the one before is back.

    Args:
        plan: The number and kind of faults.
        faults: Gets each fault when its group is back.
        progress: Called after each fault.
        describe: Returns the counts of the streams so far, for the progress.

    Returns:
        Why it ended before the last fault; empty: it did not.
    """
    chance, done = random.Random(plan.seed), "frozen" if plan.freeze else "killed"
    try:
        while len(faults) < plan.kills:
            victim: Victim = "leader" if chance.random() < 1 / 3 else "rank"
            if plan.freeze:
                victim = "rank" if len(faults) % 2 else "leader"
            fault = await _inject_fault(fleet, chance, victim, plan.streams // 4, freezes=plan.freeze)
            faults.append(fault)
            progress(f"{fault.victim} of {fault.group} {done}, {len(faults)} of {plan.kills}; {describe()}")
    except BenchError as error:
        return str(error)
    except RyzError as error:
        return error.message
    except asyncio.CancelledError:  # Ctrl-C; a second one ends the measurement without figures
        task = asyncio.current_task()
        if task is None or not task.uncancel():
            return "it was interrupted"
        raise
    return ""


async def _inject_fault(
    fleet: FleetProbe, chance: random.Random, victim: Victim, least: int, *, freezes: bool
) -> InjectedFault:
    """Kill or freeze such a member of a group once each runs `least` sequences; wait until it is back.

    A frozen leader is continued after a while. A frozen rank is killed by its leader, which starts another.
    """
    groups = await fleet.await_streams(least)
    await asyncio.sleep(_SETTLE_S * chance.random())
    group = chance.choice(sorted(groups))
    leader, ranks = groups[group]
    fetched = await fleet.fetches()
    await fleet.await_running(group, least)  # it may have ended what it ran
    pid = leader if victim == "leader" else chance.choice(ranks)
    fault = InjectedFault(victim, group, time.monotonic())
    if freezes and victim == "leader":
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(_FROZEN_S)
            await fleet.await_lost(group, fault.at)
        finally:
            os.kill(pid, signal.SIGCONT)
        thawed = time.monotonic()
        await fleet.await_back(group, thawed)
        fault.back_s = time.monotonic() - thawed
    else:
        os.kill(pid, signal.SIGSTOP if freezes else signal.SIGKILL)
        await fleet.await_away(group, fault.at)
        await fleet.await_back(group, time.monotonic())  # a heartbeat from before the fault may come after it
        fault.back_s = time.monotonic() - fault.at
    fault.fetch_s = mean_fetch_s(fetched, await fleet.fetches(), without=group)
    return fault
