"""The options of `ryz up`, each declared once."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from cli.stack.state import DEFAULT_DIR
from services.worker.rank_protocol.run_config import Kernels, PrecisionChoice


def as_given(text: str) -> Path:
    """Return a path that differs from a name: `./demo` is a directory, `demo` the model of that name."""
    return Path(text).absolute() if text.startswith("./") else Path(text)


StateDirOption = Annotated[Path, Option(help="Where the stack keeps its state and logs.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """The options of a start, first as they were given, then settled: paths absolute, names found.

    Port 0 stands for a free one. `stack` begins the names of groups. What they say of models is settled in
    `FoundModel`.
    """

    model: Annotated[
        list[Path],
        Option(
            help="A name of the catalogue (`ryz models list`), hf:OWNER/NAME, a Hugging Face directory or a "
            "GGUF file; given several times, all are served. RYZ_MODEL names one.  [default: smollm2-135m, "
            "or the demo model without a network]",
            metavar="NAME|PATH",
            parser=as_given,
            show_default=False,
        ),
    ] = field(default_factory=list)
    models: Annotated[
        Path | None,
        Option(
            help="A file that says which models are served, and how each (docs/models.md). `ryz models plan` "
            "shows what would run.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None
    on_demand: Annotated[
        bool,
        Option(
            "--on-demand",
            help="Load each model when the first request for it comes, and evict idle ones when memory is "
            "short. In a models file each model has `load`.",
        ),
    ] = False
    memory_gib: Annotated[
        float,
        Option(
            "--memory",
            min=0,
            help="Memory that the stack may take, in GiB.  [default: what is free]",
            show_default=False,
        ),
    ] = 0.0
    draft_model: Annotated[
        Path | None,
        Option(
            help="A small model of the same vocabulary, which guesses tokens for the model to check "
            "(docs/speculation.md). As for `--model`.  [default: none]",
            envvar="RYZ_DRAFT_MODEL",
            metavar="NAME|PATH",
            parser=as_given,
            show_default=False,
        ),
    ] = None
    pull: Annotated[
        bool | None,
        Option(
            "--pull/--no-pull",
            help="Fetch a model that is not here yet.  [default: on a terminal]",
            show_default=False,
        ),
    ] = None
    model_name: Annotated[
        str,
        Option(
            help="The name clients use.  [default: the directory's name, or the file's without its ending]",
            envvar="RYZ_MODEL_NAME",
            show_default=False,
        ),
    ] = ""
    tool_format: Annotated[
        str,
        Option(
            help="The form in which the model calls tools (docs/tools.md).  [default: its template's]",
            envvar="RYZ_TOOL_FORMAT",
            show_default=False,
        ),
    ] = ""
    groups: Annotated[
        int,
        Option(
            min=0,
            max=64,
            help="Worker groups; each holds the whole model; 0: two if they fit.",
            show_default=False,
        ),
    ] = 0
    tensor_parallel: Annotated[
        int,
        Option(min=0, max=64, help="Ranks that share one group's model; 0: one.", show_default=False),
    ] = 0
    threads: Annotated[
        int,
        Option(
            min=0,
            max=1024,
            help="Threads of each rank; 0: the cores shared by all ranks.",
            envvar="RYZ_THREADS",
            show_default=False,
        ),
    ] = 0
    kv_cache_tokens: Annotated[
        int | None,
        Option(
            min=0,
            max=2**31,
            help="KV cache of a group, in tokens.  [default: what fits, at most 65,536]",
            envvar="RYZ_KV_CACHE_TOKENS",
            show_default=False,
        ),
    ] = None
    engine: Annotated[
        Literal["torch", "null", "vllm"],
        Option(
            help="`vllm`: vLLM's own processes, of the environment in RYZ_VLLM_PYTHON. `null` computes "
            "nothing: it measures the path.",
            envvar="RYZ_ENGINE",
        ),
    ] = "torch"
    precision: Annotated[
        PrecisionChoice,
        Option(
            help="Of weights: `fp32` computes with stored values, `bf16`, `int8` and `codes` (of a quantized "
            "file) are smaller and faster, with an fp16 KV cache. `auto`: what the file has.",
            envvar="RYZ_PRECISION",
        ),
    ] = "auto"
    kernels: Annotated[
        Kernels,
        Option(
            help="Compiled (`native`, or of one instruction set), or `plain` torch operations: several times "
            "slower.",
            envvar="RYZ_KERNELS",
        ),
    ] = "auto"
    host: Annotated[str, Option(help="Where the API listens.", envvar="RYZ_HTTP_HOST")] = "127.0.0.1"
    open_to_network: Annotated[
        bool,
        Option(
            "--open-to-network",
            help="Serve without API keys although other machines reach `--host`.",
            envvar="RYZ_OPEN_TO_NETWORK",
        ),
    ] = False
    port: Annotated[
        int, Option(min=0, max=65535, help="Its port; 0 finds a free one.", envvar="RYZ_HTTP_PORT")
    ] = 8000
    grpc_port: Annotated[
        int, Option(min=0, max=65535, help="Its port for gRPC; 0: none.", envvar="RYZ_GRPC_PORT")
    ] = 0
    policy: Annotated[
        Literal["round_robin", "weighted", "least_loaded", "sticky", "state_server", "hybrid"],
        Option(help="How the router chooses a group.", envvar="RYZ_ROUTER_POLICY"),
    ] = "hybrid"
    routers: Annotated[
        int, Option(min=1, max=16, help="Routers; with two, new requests hardly notice that one dies.")
    ] = 2
    nats_url: Annotated[
        str, Option(help="A broker that runs already.", envvar="RYZ_NATS_URL", show_default=False)
    ] = ""
    redis_url: Annotated[
        str, Option(help="A Redis that runs already.", envvar="RYZ_REDIS_URL", show_default=False)
    ] = ""
    nats_port: Annotated[int, Option(min=0, max=65535, help="For our own broker; 0 finds one.")] = 0
    redis_port: Annotated[
        int,
        Option(
            min=0,
            max=65535,
            help="Where the session store listens beside its Unix socket, for tools; 0: nowhere.",
        ),
    ] = 0
    stack: Annotated[
        str,
        Option(
            help="What groups' names begin with.  [default: with --nats-url host and a random id]",
            envvar="RYZ_STACK",
            show_default=False,
        ),
    ] = ""
    redis_dir: Annotated[
        Path | None,
        Option(
            help="Keep sessions on disk, here; not with `--redis-url`.  [default: in memory only]",
            file_okay=False,
        ),
    ] = None
    redis_memory_share: Annotated[
        float,
        Option(
            min=0.01,
            max=0.9,
            help="What our own stores may take of all memory: a quarter of it sessions, the rest KV.",
            envvar="RYZ_REDIS_MEMORY_SHARE",
        ),
    ] = 0.4
    print_unit: Annotated[
        bool,
        Option("--print-unit", help="Print a systemd unit that runs this command, and start nothing."),
    ] = False
    detach: Annotated[bool, Option("--detach", "-d", help="Return when it is ready; see `down`.")] = False
    state_dir: StateDirOption = DEFAULT_DIR
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Option(envvar="RYZ_LOG_LEVEL")] = (
        "info"
    )
    start_timeout_s: Annotated[
        float, Option("--start-timeout", min=1, help="Seconds until all has to be ready.")
    ] = 300.0
