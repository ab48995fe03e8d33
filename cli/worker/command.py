"""`ryz worker`: its options. `remote_group.py` plans the group's process, `run.py` runs it."""

from dataclasses import dataclass
from typing import Annotated

from typer import Option

from cli.command_groups import BrokerUrl, StateDirectory
from cli.command_options import with_options
from cli.stack.state import DEFAULT_DIR


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The options of a group; what is empty is left to the settings."""

    remote: Annotated[
        str,
        Option(
            help="Address of an OpenAI-compatible server that computes the model, such as "
            "http://10.0.0.5:8000.",
            metavar="URL",
            envvar="RYZ_REMOTE_URL",
        ),
    ]
    model: Annotated[str, Option(help="The name clients use.", metavar="NAME", envvar="RYZ_MODEL_NAME")]
    remote_model: Annotated[
        str,
        Option(
            help="The model's name at the server.  [default: that of --model]",
            metavar="NAME",
            envvar="RYZ_REMOTE_MODEL",
            show_default=False,
        ),
    ] = ""
    tokenizer: Annotated[
        str,
        Option(
            help="The model's tokenizer and chat template: a Hugging Face directory (weights may be "
            "missing), a GGUF file, or a name as for `ryz up --model`.  [default: the catalogue's model of "
            "--model]",
            metavar="NAME|PATH",
            envvar="RYZ_MODEL",
            show_default=False,
        ),
    ] = ""
    group: Annotated[
        str,
        Option(
            help="The group's name, up to 64 letters, digits, `-` and `_`.  [default: remote- and six digits "
            "made of URL and NAME, the same each time]",
            metavar="NAME",
            envvar="RYZ_GROUP",
            show_default=False,
        ),
    ] = ""
    key_file: Annotated[
        str,
        Option(
            help="File with the server's API key.  [default: none]",
            metavar="FILE",
            envvar="RYZ_REMOTE_KEY_FILE",
            show_default=False,
        ),
    ] = ""
    ca_file: Annotated[
        str,
        Option(
            help="PEM file of authorities for the server's certificate.  [default: the system's]",
            metavar="FILE",
            envvar="RYZ_REMOTE_CA",
            show_default=False,
        ),
    ] = ""
    max_running: Annotated[
        int,
        Option(
            min=0,
            max=4096,
            help="Sequences that the server gets at once; 0: what it says of itself, else 128.",
            envvar="RYZ_MAX_RUNNING",
            show_default=False,
        ),
    ] = 0
    weight: Annotated[
        float,
        Option(min=0.001, max=1000, help="The group's share of the sessions.", envvar="RYZ_WEIGHT"),
    ] = 1.0
    pull: Annotated[
        bool | None,
        Option(
            "--pull/--no-pull",
            help="Fetch a tokenizer's model that is not here yet.  [default: on a terminal]",
            show_default=False,
        ),
    ] = None
    nats_url: BrokerUrl = ""
    state_dir: StateDirectory = DEFAULT_DIR
    start_timeout_s: Annotated[
        float, Option("--start-timeout", min=1, help="Seconds until it has to be ready.")
    ] = 150.0


@with_options
def worker(options: WorkerOptions) -> None:
    """Join a running stack as a group whose model a server of others computes, such as vLLM or llama-server.

    It runs until Ctrl-C or SIGTERM, which drain it: running requests go on in other groups. No weights are
    read here. What the server cannot do is shown when it is ready, and refused by name (docs/guests.md). What
    has no option here is a RYZ_ variable: see docs/settings.md.

    Examples:
        ryz worker --remote http://10.0.0.5:8000 --model qwen3-8b --tokenizer ./qwen3-8b
        ryz worker --remote https://api.example.com --model big --remote-model big-1 --key-file key
    """
    import asyncio  # noqa: PLC0415 (keeps `ryz --help` quick)

    from cli.worker.remote_group import plan_group, require_stack  # noqa: PLC0415
    from cli.worker.run import run_group  # noqa: PLC0415

    url = require_stack(options.nats_url, options.state_dir)
    asyncio.run(run_group(plan_group(options, url)))
