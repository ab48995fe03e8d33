"""Runs a stack in this process, or in one that outlives the command, and says where it is reached."""

import asyncio
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from cli.bus_users.broker_users import BrokerUsers
from cli.console import INTERRUPTED, CommandError, called_as, err, fail, out, start_report
from cli.keys.first_admin_key import FirstAdminKey
from cli.keys.lost_records import lost_records_note
from cli.stack.agent.start import StackAgents
from cli.stack.fleet.core_sets import Cores
from cli.stack.fleet.remote_models import own_models
from cli.stack.host.known_stacks import forget_stack, remember_stack
from cli.stack.host.kv_pool import shared_kv_pool
from cli.stack.host.ports import held_ports, listening_port
from cli.stack.host.private import make_private_dir, open_log, remove_dir, remove_empty, write_private
from cli.stack.machine import Settled
from cli.stack.options import UpOptions
from cli.stack.plan import FILES, STREAMS, StackPlan, plan_stack
from cli.stack.probes import Probes
from cli.stack.state import (
    SUPERVISOR,
    StackState,
    StateDir,
    is_default_dir,
    log_tail,
    start_time,
    state_dir_words,
)
from cli.stack.supervision.announcement import announce
from cli.stack.supervision.stack import Stack
from cli.stack.supervision.systemd import notify_ready
from shared.host.cores_and_memory import total_bytes
from shared.host.local_stack import ADMIN_KEY_FILE

POLL_S = 0.05


def run_here(options: UpOptions, settled: Settled, closing: str = "") -> None:
    """Run the stack until Ctrl-C or SIGTERM.

    Args:
        closing: The last line that is printed when it is ready.

    Raises:
        CommandError: It cannot start, or cannot go on.
    """
    _run_on(settled.cores.others)
    asyncio.run(_run(options, settled, StateDir(options.state_dir), closing))


def run_detached(options: UpOptions, settled: Settled, closing: str = "") -> None:
    """Start the stack in a process of its own, which writes to a log file, and return when it is ready."""
    state_dir = StateDir(options.state_dir)
    state_dir.make()
    log, key_file = state_dir.log(SUPERVISOR), state_dir.path / ADMIN_KEY_FILE
    state_dir.put_aside(log)
    had_key = key_file.exists()
    out.file.flush()
    pid = os.fork()  # nothing of this process runs in threads yet
    if pid == 0:
        _leave_terminal(log)
        _run_on(settled.cores.others)
        asyncio.run(_run(options, settled, state_dir, closing))
        return
    state = _await_ready(state_dir, pid)
    if state is None:
        fail(f"The stack did not start. {log} ends with:\n{log_tail(log, lines=40)}")
    made_key = key_file.read_text().strip() if key_file.exists() and not had_key else ""
    asyncio.run(_announce_start(options, settled, state, made_key=made_key))
    for line in (f"`{called_as()} down{state_dir_words(options.state_dir)}` ends it.", closing):
        out.print(line, end="\n" if line else "", markup=False, soft_wrap=True)


async def _run(options: UpOptions, settled: Settled, state_dir: StateDir, closing: str) -> None:
    if not state_dir.acquire():
        fail(f"Another `ryz up` is just starting or ending in {state_dir.path}; try again in a moment.")
    _begin_in(state_dir)
    probes, ports, pool = Probes(), ExitStack(), ExitStack()
    files, made = list[Path](), dict[Path, list[Path]]()
    try:
        models = settled.models
        groups = 0 if options.engine != "torch" else sum(model.entry.groups for model in own_models(models))
        kv_pool = pool.enter_context(shared_kv_pool(groups, os.environ, total_bytes()))
        plan = plan_stack(options, models, probes, os.environ, kv_pool).on_cores(settled.cores)
        ports.enter_context(held_ports(plan.http_addresses))
        addresses = [spec.listens_at for spec in plan.specs if spec.listens_at is not None]
        listeners = {address: ports.enter_context(listening_port(*address)) for address in addresses}
        own_pid = os.getpid()
        state = StackState(
            pid=own_pid,
            started_at=start_time(own_pid) or 0.0,
            url=plan.url,
            grpc_address=plan.grpc_address,
            nats_url=plan.nats_url,
            redis_url=plan.redis_url,
            kv_redis_url=plan.kv_redis_url,
            model=models[0].name,
            models=[model.name for model in models],
            nats_urls=dict(plan.nats_urls),
        )
        files.extend(plan.files)
        for path, text in plan.files.items():
            write_private(path, text)
        if plan.run_dir is not None:
            made[plan.run_dir] = list(plan.sockets)
            make_private_dir(plan.run_dir)
        live = ExitStack()
        live_report = live.enter_context(start_report())
        stack = Stack(plan.specs, state_dir, state, live_report, listeners, imports=plan.imports)
        agents = StackAgents(options, settled, plan, stack, live_report)
        key, users = (
            FirstAdminKey(state_dir.path, state.nats_urls.get("cli", "")),
            BrokerUsers(state_dir, state.nats_urls.get("cli", "")),
        )
        _stop_on_signals(stack)
        try:
            agents.begin(state.broker("host"))
            with live:  # the table of the start; later notes are lines
                ready = await stack.start(options.start_timeout_s, lambda: users.start(key.make_key()))
            if ready:
                await agents.await_started(options.start_timeout_s)
                await _announce_start(options, settled, state, closing, key.text)
                notify_ready()
                await stack.supervise()
            _say_ending(plan)
        finally:
            await users.close()
            await agents.close()
            await stack.close()
    finally:
        ports.close()
        await probes.close()
        _remove_files(files, made)
        pool.close()
        _end_in(state_dir)
    out.print("All services have ended.", markup=False)


def _remove_files(files: Sequence[Path], made: Mapping[Path, list[Path]]) -> None:
    for file in files:
        file.unlink(missing_ok=True)
    for directory, sockets in made.items():
        remove_dir(directory, sockets)


async def _announce_start(
    options: UpOptions, settled: Settled, state: StackState, closing: str = "", made_key: str = ""
) -> None:
    """Announce a stack that is ready, and say what it has lost; see `announce`."""
    announce(options, settled, state, closing, made_key)
    broker, folder = state.nats_urls.get("cli", ""), options.state_dir
    if note := await lost_records_note(folder, broker, folder / STREAMS):
        err.print(note, style="yellow", markup=False, soft_wrap=True)


def _stop_on_signals(stack: Stack) -> None:
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(signum, stack.request_stop)


def refuse_if_up(state_dir: Path) -> None:
    """Fail, saying where it is, when a stack runs with that state directory already."""
    stack = StateDir(state_dir)
    state = stack.read()
    if state is not None:
        now = "is up" if state.ready else "is starting"
        fail(
            f"A stack {now} already: {state.url} (pid {state.pid}, state in {stack.path}). "
            f"`{called_as()} down{state_dir_words(stack.path)}` ends it; "
            "`--state-dir` makes room for a second one."
        )


def _begin_in(state_dir: StateDir) -> None:
    """Keep the logs of the stack before, and let commands in other folders find this one.

    Only a stack in the default directory of a folder is found.
    """
    state_dir.put_logs_aside()
    if not is_default_dir(state_dir.path):
        return
    try:
        remember_stack(state_dir.path)
    except OSError as error:
        out.print(f"Commands find this stack in this folder only: {error}.", markup=False, soft_wrap=True)


def _end_in(state_dir: StateDir) -> None:
    for name in (STREAMS, FILES):  # what is in them outlives the stack
        remove_empty(state_dir.path / name)
    forget_stack(state_dir.path)
    state_dir.release()


def _run_on(cores: Cores) -> None:
    """Keep this process off the cores that groups have for themselves."""
    if cores:
        for thread in os.listdir("/proc/self/task"):  # libraries have started some
            os.sched_setaffinity(int(thread), cores)


def _leave_terminal(log: Path) -> None:
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    file = open_log(log)
    for source, target in ((null, 0), (file, 1), (file, 2)):
        os.dup2(source, target)
    for console in (out, err):
        console.leave_terminal()
    os.close(null)
    os.close(file)


def _await_ready(state_dir: StateDir, pid: int) -> StackState | None:
    """Return the state of the stack when it is ready; None if the supervisor ended before.

    Raises:
        CommandError: Ctrl-C, which ends the supervisor.
    """
    seen: set[str] = set()
    try:
        with start_report() as report:
            while os.waitpid(pid, os.WNOHANG) == (0, 0):
                state = state_dir.read()
                for service in state.services if state else []:
                    if service.name not in seen and not service.ready:
                        report.waiting(service.name)
                    elif service.name not in seen:
                        seen.add(service.name)
                        report.ready(service.name)
                if state is not None and state.ready:
                    return state
                time.sleep(POLL_S)
    except KeyboardInterrupt:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
        raise CommandError("Interrupted; nothing is left running.", INTERRUPTED) from None
    return None


def _say_ending(plan: StackPlan) -> None:
    out.print(
        f"Ending: running requests have {plan.drain_s} s to finish (RYZ_DRAIN_TIMEOUT_S); "
        "Ctrl-C again ends it at once.",
        markup=False,
        soft_wrap=True,
    )
