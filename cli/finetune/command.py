"""`ryz finetune`: options and refusals; the training is in `training/finetune/`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from cli.command_options import with_options

if TYPE_CHECKING:
    from cli.finetune.base_files import Base
    from training.finetune.finetune import FinetuneReport
    from training.finetune.plan import FinetunePlan

_INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneOptions:
    """The options of `ryz finetune`."""

    base: Annotated[str, Argument(metavar="BASE", help="The model to adapt: a name or a path.")]
    data: Annotated[Path, Option(help="Chats, JSON Lines: OpenAI's form or ShareGPT's.")]
    output: Annotated[Path, Option("--output", "-o", metavar="DIR", help="The directory of the adapter.")]
    base_bits: Annotated[
        int,
        Option(
            help="Of a weight of the base in memory: 32, 16, or 4 (QLoRA); 0: 16 where the processor "
            "computes in bf16, else 32."
        ),
    ] = 0
    rank: Annotated[int, Option(min=1, max=512, help="Of the adapter's matrices.")] = 16
    alpha: Annotated[
        float, Option(min=0, help="The adapter's outputs are scaled by alpha / rank.  0: twice the rank.")
    ] = 0
    dropout: Annotated[float, Option(min=0, max=0.9, help="Share of an adapter's inputs left out.")] = 0.0
    targets: Annotated[
        str, Option(help="Linear layers with an adapter, such as q_proj,v_proj.  [default: all]")
    ] = ""
    length: Annotated[int, Option(min=16, help="Tokens of a pack, which short chats share.")] = 1024
    packs: Annotated[int, Option(min=1, help="Packs of an optimizer step.")] = 1
    packing: Annotated[bool, Option("--packing/--no-packing", help="Short chats share a pack.")] = True
    skip_long: Annotated[bool, Option("--skip-long", help="Leave out chats longer than --length.")] = False
    epochs: Annotated[int, Option(min=1, help="Passes over the data at most.")] = 3
    learning_rate: Annotated[float, Option(min=0, help="At its peak.")] = 5e-4
    held_out: Annotated[float, Option(min=0, max=0.9, help="Share of the chats that is not trained on.")] = (
        0.1
    )
    patience: Annotated[
        int, Option(min=0, help="Evaluations without a lower held-out loss that end the training; 0: none.")
    ] = 3
    evaluations: Annotated[int, Option(min=1, help="Of the held-out chats, in each epoch.")] = 1
    checkpoint_s: Annotated[float, Option(min=0, help="Seconds between checkpoints.")] = 120.0
    recompute: Annotated[
        bool, Option("--recompute", help="Compute layers again in the backward pass: less memory, slower.")
    ] = False
    resume: Annotated[bool, Option("--resume", help="Go on with an interrupted training.")] = False
    seed: Annotated[int, Option(help="Decides split, order and first weights.")] = 0
    threads: Annotated[int, Option(min=0, max=1024, help="CPU threads; 0: all usable cores.")] = 0
    serve: Annotated[
        str, Option(metavar="URL", help="Load the adapter into the stack with this gateway.")
    ] = ""
    name: Annotated[str, Option(help="Of the adapter there.  [default: that of DIR]")] = ""
    serve_base: Annotated[str, Option(help="Name of the base there.  [default: that of BASE]")] = ""
    api_key: Annotated[str, Option(envvar="RYZ_API_KEY", help="A key of the gateway's.")] = ""


@with_options
def finetune(options: FinetuneOptions) -> None:
    """Train an adapter (LoRA, QLoRA) on chats, on the CPU; the result is a PEFT directory.

    Only the assistant's answers are learned. Ctrl-C or SIGTERM writes a checkpoint, and --resume goes on; so
    does it after a crash. Needs `pip install 'ryzanstein[finetune]'`.

    Examples:
        ryz finetune smollm2-135m --data chats.jsonl -o ./my-adapter
        ryz finetune ./my-model --data chats.jsonl -o ./my-adapter --base-bits 4 --recompute
        ryz finetune smollm2-135m --data chats.jsonl -o ./my-adapter --serve http://127.0.0.1:8000
    """
    from cli.console import err, fail, out  # noqa: PLC0415 (keeps `ryz --help` quick)
    from cli.finetune.base_files import find_base, float_directory, remove_floats  # noqa: PLC0415
    from cli.finetune.serving import AdapterStack  # noqa: PLC0415

    require_packages()
    _check(options)
    with err.status("Loading torch"):
        from cli.finetune.training_bar import training_bar  # noqa: PLC0415
        from services.worker.engine.config.json_fields import ModelError  # noqa: PLC0415
        from services.worker.gguf.header_bytes import BadGguf  # noqa: PLC0415
        from services.worker.model_files.load_model import load_model  # noqa: PLC0415
        from shared.errors import RyzError  # noqa: PLC0415
        from training.finetune.checkpoints import find_checkpoint  # noqa: PLC0415
        from training.finetune.errors import FinetuneError, Stopped  # noqa: PLC0415
        from training.finetune.finetune import finetune as train  # noqa: PLC0415
        from training.finetune.finetune import require_output  # noqa: PLC0415
        from training.finetune.stop_signals import stop_signals  # noqa: PLC0415

    def note(text: str) -> None:
        err.print(text, style="dim", soft_wrap=True)

    base, output = find_base(options.base), options.output
    plan = _plan(options, base)
    stack = AdapterStack(
        url=options.serve,
        api_key=options.api_key,
        base=options.serve_base or base.served_as,
        name=options.name or output.resolve().name,
    )
    if options.serve:
        stack.check()
    try:
        require_output(plan, resume=options.resume)
        model = load_model(base.path, base.served_as)
        directory, described = float_directory(base, output, plan.base_bits)
        note(described)
        plan = _plan(options, base, directory)
        with (
            stop_signals(lambda: note("stopping after this step; once more: at once")) as is_stopped,
            training_bar() as show,
        ):
            report = train(
                plan, model, resume=options.resume, is_stopped=is_stopped, note=note, progress=show
            )
    except (FinetuneError, ModelError, BadGguf) as error:
        fail(_sentence(str(error)), 2)
    except RyzError as error:
        fail(_sentence(error.message), 2)
    except Stopped as stopped:
        fail(f"Stopped after step {stopped.step}. Go on: the same command with `--resume`.", _INTERRUPTED)
    except OSError as error:
        fail(f"{output} cannot be written: {error.strerror or error}.")
    finally:
        if find_checkpoint(output) is None:  # nothing goes on from here
            remove_floats(output)
    _show(report, plan)
    if options.serve:
        out.print(stack.load(output), soft_wrap=True)


def require_packages() -> None:
    """Fail without the packages of the extra."""
    from importlib.util import find_spec  # noqa: PLC0415 (keeps `ryz --help` quick)

    from cli.console import fail  # noqa: PLC0415

    missing = [name for name in ("torch", "transformers", "peft") if find_spec(name) is None]
    if missing:
        fail(
            f"Training needs {', '.join(missing)}: `pip install 'ryzanstein[finetune]'` (in a checkout, "
            "`.venv/bin/pip install -c constraints.txt -e '.[finetune]'`).",
            2,
        )


def _check(options: FinetuneOptions) -> None:
    from cli.console import fail  # noqa: PLC0415 (keeps `ryz --help` quick)

    if options.base_bits not in (0, 4, 16, 32):
        fail(f"--base-bits is 0, 4, 16 or 32, got {options.base_bits}.", 2)
    if options.learning_rate <= 0:
        fail("--learning-rate must be above 0.", 2)


def _plan(options: FinetuneOptions, base: "Base", directory: Path | None = None) -> "FinetunePlan":
    from shared.host.cores_and_memory import usable_cores  # noqa: PLC0415 (keeps `ryz --help` quick)
    from training.finetune.base_model import computes_bf16  # noqa: PLC0415
    from training.finetune.plan import FinetunePlan  # noqa: PLC0415

    return FinetunePlan(
        base=directory or base.path,
        base_name=base.name,
        data=options.data,
        output=options.output,
        base_bits=options.base_bits or (16 if computes_bf16() else 32),
        rank=options.rank,
        alpha=options.alpha or 2.0 * options.rank,
        dropout=options.dropout,
        targets=tuple(name.strip() for name in options.targets.split(",") if name.strip()),
        length=options.length,
        packs=options.packs,
        packing=options.packing,
        skip_long=options.skip_long,
        epochs=options.epochs,
        learning_rate=options.learning_rate,
        held_out=options.held_out,
        patience=options.patience,
        evaluations=options.evaluations,
        checkpoint_s=options.checkpoint_s,
        recompute=options.recompute,
        seed=options.seed,
        threads=options.threads or usable_cores(),
    )


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _show(report: "FinetuneReport", plan: "FinetunePlan") -> None:
    from cli.console import out  # noqa: PLC0415 (keeps `ryz --help` quick)
    from cli.finetune.loss_curve import draw_curve  # noqa: PLC0415
    from training.finetune.loss_log import NAME, read_log  # noqa: PLC0415
    from training.finetune.memory_estimate import in_mib  # noqa: PLC0415

    losses = [line["loss"] for line in read_log(plan.output) if "loss" in line]
    for line in draw_curve(losses):
        out.print(line, soft_wrap=True)
    early = (
        f" (of {report.of_steps}: the held-out loss fell no more)" if report.steps < report.of_steps else ""
    )
    held_out = ""
    if report.held_out is not None and report.held_out_before is not None:
        held_out = (
            f", held-out loss {report.held_out_before:.3f} -> {report.held_out:.3f} (step {report.best_step})"
        )
    out.print(
        f"{report.steps} steps{early}, {report.tokens:,} tokens, loss {report.loss:.4f}{held_out}",
        soft_wrap=True,
    )
    out.print(
        f"{report.wall_s:.0f} s, {report.cpu_s:.0f} s of CPU time, peak memory {in_mib(report.peak_bytes)} "
        f"(estimated {in_mib(report.estimate.total)}, free {in_mib(report.free_bytes)})",
        soft_wrap=True,
    )
    out.print(f"{plan.output}: the adapter, and {NAME} with the loss of each step", soft_wrap=True)
