"""`ryz up` and `ryz down`: options in, a supervised stack, a person who knows where it is.

What runs is decided in `supervisor/plan.py`, how it is kept running in `supervisor/stack.py`.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cli.console import fail
from cli.stack.options import UpOptions, find_model
from cli.stack.state import DEFAULT_DIR

StateDirOption = Annotated[Path, typer.Option(help="Where the stack keeps its state and logs.")]


class Engine(StrEnum):
    """Who computes tokens."""

    torch = "torch"
    null = "null"


class Policy(StrEnum):
    """How the router chooses a group."""

    round_robin = "round_robin"
    weighted = "weighted"
    least_loaded = "least_loaded"
    sticky = "sticky"
    state_server = "state_server"
    hybrid = "hybrid"


class Quantize(StrEnum):
    """How weights are stored."""

    none = "none"
    int8 = "int8"


class Kernels(StrEnum):
    """What ranks compute with."""

    auto = "auto"
    native = "native"
    plain = "plain"


class LogLevel(StrEnum):
    """The least that services log."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


def up(  # noqa: PLR0917 (each is an option)
    model: Annotated[
        Path | None,
        typer.Option(help="A Hugging Face model directory.  [default: the demo model]", envvar="RYZ_MODEL"),
    ] = None,
    model_name: Annotated[
        str,
        typer.Option(
            help="The name clients use.  [default: the directory's name]",
            envvar="RYZ_MODEL_NAME",
            show_default=False,
        ),
    ] = "",
    groups: Annotated[
        int, typer.Option(min=1, max=64, help="Worker groups; each holds the whole model.")
    ] = 2,
    tensor_parallel: Annotated[
        int, typer.Option(min=1, max=64, help="Ranks that share one group's model.")
    ] = 2,
    engine: Annotated[
        Engine, typer.Option(help="`null` computes nothing: it measures the path.", envvar="RYZ_ENGINE")
    ] = Engine.torch,
    quantize: Annotated[
        Quantize,
        typer.Option(
            help="`int8`: 8-bit weights, fp16 KV cache; faster, a little less exact.", envvar="RYZ_QUANTIZE"
        ),
    ] = Quantize.none,
    kernels: Annotated[
        Kernels,
        typer.Option(
            help="Compiled (`native`), or `plain` torch operations: several times slower.",
            envvar="RYZ_KERNELS",
        ),
    ] = Kernels.auto,
    host: Annotated[str, typer.Option(help="Where the API listens.", envvar="RYZ_HTTP_HOST")] = "127.0.0.1",
    open_to_network: Annotated[
        bool,
        typer.Option(
            "--open-to-network",
            help="Serve without API keys although other machines reach `--host`.",
            envvar="RYZ_OPEN_TO_NETWORK",
        ),
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Its port; 0 finds a free one.", envvar="RYZ_HTTP_PORT")
    ] = 8000,
    policy: Annotated[
        Policy, typer.Option(help="How the router chooses a group.", envvar="RYZ_ROUTER_POLICY")
    ] = Policy.hybrid,
    nats_url: Annotated[
        str, typer.Option(help="A broker that runs already.", envvar="RYZ_NATS_URL", show_default=False)
    ] = "",
    redis_url: Annotated[
        str, typer.Option(help="A Redis that runs already.", envvar="RYZ_REDIS_URL", show_default=False)
    ] = "",
    nats_port: Annotated[int, typer.Option(min=0, max=65535, help="For our own broker; 0 finds one.")] = 0,
    redis_port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            help="Where the session store listens beside its Unix socket, for tools; 0: nowhere.",
        ),
    ] = 0,
    stack: Annotated[
        str,
        typer.Option(
            help="What groups' names begin with.  [default: with --nats-url host and a random id]",
            envvar="RYZ_STACK",
            show_default=False,
        ),
    ] = "",
    redis_dir: Annotated[
        Path | None,
        typer.Option(help="Keep sessions on disk, here.  [default: in memory only]", file_okay=False),
    ] = None,
    redis_memory_share: Annotated[
        float,
        typer.Option(
            min=0.01,
            max=0.9,
            help="What our own stores may take of all memory: a quarter of it sessions, the rest KV.",
            envvar="RYZ_REDIS_MEMORY_SHARE",
        ),
    ] = 0.4,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when it is ready; see `down`.")
    ] = False,
    state_dir: StateDirOption = DEFAULT_DIR,
    log_level: Annotated[LogLevel, typer.Option(envvar="RYZ_LOG_LEVEL")] = LogLevel.info,
    start_timeout: Annotated[float, typer.Option(min=1, help="Seconds until all has to be ready.")] = 300.0,
) -> None:
    """Start the whole stack on this machine and keep it running.

    Broker, session store, router, worker groups and gateway run as processes of this command; one that dies
    is started again. Ctrl-C lets running requests finish and ends everything; a second one ends it at once.

    Each service's log is in STATE_DIR/logs. What has no option here is a RYZ_ variable: see docs/settings.md.
    """
    import os  # noqa: PLC0415 (keeps `ryz --help` quick)

    from cli.stack import runner  # noqa: PLC0415
    from cli.stack.host.naming import check_name, require_one_store, stack_name  # noqa: PLC0415
    from cli.stack.host.private import OWN_UMASK  # noqa: PLC0415
    from cli.stack.host.reach import refuse_open_network, require_reachable  # noqa: PLC0415
    from cli.stack.servers.redis_dir import make_redis_dir  # noqa: PLC0415
    from cli.stack.state import StateDir  # noqa: PLC0415

    os.umask(OWN_UMASK)  # what this command and its services write is for this user only
    state_dir = StateDir(state_dir).path  # from here on the same one, whatever becomes of links
    runner.refuse_if_up(state_dir)
    refuse_open_network(host, os.environ.get("RYZ_API_KEYS", ""), told=open_to_network)
    if quantize == Quantize.int8 and kernels == Kernels.plain:
        fail("`--quantize int8` needs the compiled kernels: leave out `--kernels plain`, or the 8 bits.", 2)
    directory = find_model(model, engine, tensor_parallel)
    options = UpOptions(
        state_dir=state_dir,
        model=directory,
        model_name=model_name or (directory.name if directory else "demo"),
        engine=engine.value,
        groups=groups,
        tensor_parallel=tensor_parallel,
        quantize=quantize.value,
        kernels=kernels.value,
        host=host,
        port=port,
        policy=policy.value,
        nats_url=nats_url,
        redis_url=redis_url,
        nats_port=nats_port,
        redis_port=redis_port,
        redis_dir=make_redis_dir(redis_dir) if redis_dir else None,
        log_level=log_level.value,
        start_timeout_s=start_timeout,
        redis_memory_share=redis_memory_share,
        open_to_network=open_to_network,
        stack=stack_name(check_name(stack), StateDir(state_dir), shared=bool(nats_url)),
    )
    if nats_url:
        require_reachable("NATS server", nats_url, "--nats-url")
    if redis_url:
        require_reachable("Redis", redis_url, "--redis-url")
    if nats_url and not redis_url:
        require_one_store(nats_url, state_dir)
    runner.run_detached(options) if detach else runner.run_here(options)


def down(state_dir: StateDirOption = DEFAULT_DIR) -> None:
    """End a stack that `ryz up` started, letting running requests finish."""
    import os  # noqa: PLC0415
    import signal  # noqa: PLC0415
    import time  # noqa: PLC0415
    from contextlib import suppress  # noqa: PLC0415

    from cli.console import out  # noqa: PLC0415
    from cli.stack.state import StateDir  # noqa: PLC0415

    place = StateDir(state_dir)
    state = place.read()
    if state is None:
        fail(f"No stack is up in {place.path}. `ryz up` starts one; `--state-dir` names another directory.")
    began = time.monotonic()
    with suppress(ProcessLookupError):  # it may have ended since the file was read
        os.kill(state.pid, signal.SIGTERM)
        os.kill(state.pid, signal.SIGCONT)  # one that Ctrl-Z has stopped would never hear of it
    limit_s = state.stop_s + DOWN_SLACK_S
    while place.read() is not None:
        if time.monotonic() - began > limit_s:
            fail(f"The supervisor (pid {state.pid}) has not ended within {limit_s:g} s; kill it.")
        time.sleep(0.05)
    out.print(f"The stack at {state.url} is down ({time.monotonic() - began:.1f} s).", soft_wrap=True)


DOWN_SLACK_S = 6.0
