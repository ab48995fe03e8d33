"""`ryz up` and `ryz down`.

`plan.py` decides what runs, `stack.py` keeps it running, `runner.py` prints its address.
"""

from dataclasses import replace

from cli.command_groups import StateDirectory
from cli.command_options import with_options
from cli.console import fail
from cli.stack.options import UpOptions
from cli.stack.state import DEFAULT_DIR, StateDir, no_stack

DOWN_SLACK_S = 6.0


@with_options
def up(options: UpOptions) -> None:
    """Start the whole stack on this machine and keep it running.

    Without `--model` it serves smollm2-135m, which it fetches once (98 MB); without a network it serves the
    demo model. Several `--model`, or a models file (`--models`), are served together. What no option says is
    chosen for models and machine, and printed.

    Broker, session store, router, worker groups and gateway run as processes of this command; one that dies
    is started again. Ctrl-C ends everything: running requests have 2.5 s to finish, or RYZ_DRAIN_TIMEOUT_S;
    what takes longer is cut off, and clients can ask for it again. A second Ctrl-C ends it at once.

    Each service's log is in STATE_DIR/logs. What has no option here is a RYZ_ variable: see docs/settings.md.
    """
    import os  # noqa: PLC0415 (keeps `ryz --help` quick)
    import sys  # noqa: PLC0415

    from cli.console import out  # noqa: PLC0415
    from cli.stack import runner  # noqa: PLC0415
    from cli.stack.default_model import default_model  # noqa: PLC0415
    from cli.stack.fleet.check import checked_models  # noqa: PLC0415
    from cli.stack.fleet.declare import declare  # noqa: PLC0415
    from cli.stack.host.private import OWN_UMASK  # noqa: PLC0415
    from cli.stack.host.reachability import may_have_keys, refuse_open_network  # noqa: PLC0415
    from cli.stack.kernels import begin_compiling  # noqa: PLC0415
    from cli.stack.machine import settle_sizing  # noqa: PLC0415
    from cli.stack.plan import check_ports  # noqa: PLC0415
    from cli.stack.supervision.systemd import unit_text  # noqa: PLC0415

    if options.print_unit:
        if options.detach:
            fail("A unit keeps the stack in the foreground: leave out `--detach`.", 2)
        print(unit_text(sys.argv[1:], os.environ), end="")
        return
    os.umask(OWN_UMASK)  # files of this command and its services are for this user only
    state_dir = StateDir(options.state_dir)
    runner.refuse_if_up(state_dir.path)
    allowed = options.open_to_network or may_have_keys(state_dir.path, options.nats_url)
    refuse_open_network(options.host, os.environ.get("RYZ_API_KEYS", ""), allowed=allowed)
    if options.precision not in {"auto", "fp32"} and options.kernels == "plain":
        fail(
            f"`--precision {options.precision}` needs the compiled kernels: leave out one of the two.",
            2,
        )
    if options.redis_dir and options.redis_url:
        fail(
            "`--redis-dir` says where our own Redis keeps sessions, and with `--redis-url` none is started: "
            "leave out one of the two. What your Redis keeps is its own configuration's matter.",
            2,
        )
    check_ports(options, os.environ)  # before a model is fetched or planned
    closing, declared = "", declare(options, os.environ)
    compilation = begin_compiling(options, declared)  # while models are fetched
    if declared.is_open and options.engine != "null":
        model, closing = default_model(pull=options.pull)
        declared = declare(replace(options, model=[model]), os.environ)
    models = checked_models(options, declared, pull=options.pull)
    settled = _settle(options, state_dir)
    compilation.wait()  # the sizing below depends on whether there are kernels
    sizing = settle_sizing(settled, models, declared)
    if sizing.text:
        out.print(sizing.text, soft_wrap=True)
    run = runner.run_detached if options.detach else runner.run_here
    run(replace(settled, redis_memory_share=sizing.redis_memory_share), sizing, closing)


def _settle(options: UpOptions, state_dir: StateDir) -> UpOptions:
    """Find the names, make directories absolute, and check that given servers answer."""
    from cli.stack.host.naming import check_name, require_one_store, stack_name  # noqa: PLC0415
    from cli.stack.host.reachability import require_reachable  # noqa: PLC0415
    from cli.stack.servers.redis_dir import make_redis_dir, require_accepted  # noqa: PLC0415

    settled = replace(
        options,
        state_dir=state_dir.path,  # without links, whatever becomes of them later
        redis_dir=make_redis_dir(options.redis_dir) if options.redis_dir else None,
        stack=stack_name(check_name(options.stack), state_dir, shared=bool(options.nats_url)),
    )
    if settled.redis_dir:
        require_accepted(settled.redis_dir)
    if options.nats_url:
        require_reachable("NATS server", options.nats_url, "--nats-url")
    if options.redis_url:
        require_reachable("Redis", options.redis_url, "--redis-url")
    if options.nats_url and not options.redis_url:
        require_one_store(options.nats_url, state_dir.path)
    return settled


def down(state_dir: StateDirectory = DEFAULT_DIR) -> None:
    """End a stack that `ryz up` started; running requests have 2.5 s to finish, or RYZ_DRAIN_TIMEOUT_S."""
    import os  # noqa: PLC0415
    import signal  # noqa: PLC0415
    import time  # noqa: PLC0415
    from contextlib import suppress  # noqa: PLC0415

    from cli.console import out  # noqa: PLC0415

    stack_dir = StateDir(state_dir)
    state = stack_dir.read()
    if state is None:
        fail(no_stack(stack_dir.path))
    # without options it may be that of another folder
    out.print(f"Ending the stack in {stack_dir.path} (pid {state.pid}).", markup=False, soft_wrap=True)
    began = time.monotonic()
    with suppress(ProcessLookupError):  # it may have ended since the file was read
        os.kill(state.pid, signal.SIGTERM)
        os.kill(state.pid, signal.SIGCONT)  # a process that Ctrl-Z has stopped handles the first only now
    limit_s = state.stop_s + DOWN_SLACK_S
    while stack_dir.read() is not None:
        if time.monotonic() - began > limit_s:
            fail(f"The supervisor (pid {state.pid}) has not ended within {limit_s:g} s; kill it.")
        time.sleep(0.05)
    out.print(f"The stack at {state.url} is down ({time.monotonic() - began:.1f} s).", soft_wrap=True)
