"""`ryz quantize`: options, refusals, bar and table of the quantization of a model."""

import re
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from cli.command_options import with_options

if TYPE_CHECKING:
    from training.quantize.quantizer import Progress

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}
_MARGIN = 1.05  # of the size of what is written, for headers and texts


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeOptions:
    """The options of `ryz quantize`."""

    model: Annotated[str, Argument(metavar="MODEL", help="A model's name or path.")]
    output: Annotated[Path, Option("--output", "-o", metavar="DIR", help="The directory to write.")]
    bits: Annotated[int, Option(help="Of a code: 4 or 8; with 4, some linears have 8, see --mean-bits.")] = 4
    mean_bits: Annotated[
        float,
        Option(
            min=0,
            max=16,
            help="Of a quantized weight, with scales and zero points: linears whose layers lose most get "
            "8 bits until the mean is reached; 0: all have --bits.",
        ),
    ] = 5.0
    size: Annotated[
        str,
        Option(
            help="Of all weights together, such as 120MB, in place of --mean-bits.",
            show_default=False,
        ),
    ] = ""
    group: Annotated[int, Option(min=8, help="Inputs that share a scale; a multiple of 8.")] = 32
    symmetric: Annotated[bool, Option("--symmetric", help="Scales alone, without zero points.")] = False
    text: Annotated[
        Path | None, Option(help="Calibration text, UTF-8.  [default: prose that ships with Python]")
    ] = None
    samples: Annotated[int, Option(min=2, max=4096, help="Windows of the calibration text.")] = 32
    length: Annotated[int, Option(min=16, max=8192, help="Tokens of a window.")] = 512
    steps: Annotated[
        int, Option(min=0, max=10_000, help="Of learning codes and scales for each layer; 0: none.")
    ] = 40


@with_options
def quantize(options: QuantizeOptions) -> None:
    """Quantize a model to 4 or 8 bits with calibration text, in the form of compressed-tensors.

    Each group of linears is rounded to nearest, by GPTQ and by AWQ's scales, and the way whose outputs change
    least on text that was not fitted to is kept. Then the codes, scales and norms of each layer are learned
    from its outputs in --steps steps. An interrupted run goes on when it is asked for again.

    Examples:
        ryz quantize ./my-model -o ./my-model-4bit
        ryz quantize smollm2-135m -o ./smollm2-mixed --size 120MB
    """
    from cli.console import fail, out  # noqa: PLC0415 (keeps `ryz --help` quick)
    from cli.models.resolve import resolve_model  # noqa: PLC0415
    from cli.models.store import in_bytes, require_space, size_of  # noqa: PLC0415
    from services.worker.engine.config.json_fields import ModelError  # noqa: PLC0415
    from services.worker.gguf.header_bytes import BadGguf  # noqa: PLC0415
    from shared.errors import RyzError  # noqa: PLC0415
    from training.quantize.quantizer import QuantizePlan, Quantizer  # noqa: PLC0415

    if options.bits not in (4, 8):
        fail(f"--bits is 4 or 8, got {options.bits}.", 2)
    num_bytes = _size(options.size)
    path, output = resolve_model(options.model, pull=False), options.output
    if (output / "config.json").exists():
        fail(f"There is a model in {output} already: name another directory, or remove it.", 2)
    draft = output.with_name(f".{output.name}.part")
    facts: list[dict[str, Any]] = []
    with ExitStack() as stack:
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            if not path.is_dir():
                path = _floats(
                    path, Path(stack.enter_context(tempfile.TemporaryDirectory(dir=output.parent)))
                )
            require_space(output, int(size_of(path) * _MARGIN))
            plan = QuantizePlan(
                model=path, bits=options.bits, group=options.group, symmetric=options.symmetric,
                num_bytes=num_bytes, text=options.text, samples=options.samples, length=options.length,
                steps=options.steps, mean_bits=options.mean_bits or None,
            )  # fmt: skip
            with Quantizer(plan) as quantizer:
                _run(quantizer.run, draft, facts)
            if output.exists():
                shutil.rmtree(output)
            draft.replace(output)
        except (ModelError, BadGguf) as error:
            fail(f"{error}.", 2)
        except RyzError as error:
            fail(f"{error.message}.", 2)
        except OSError as error:
            fail(f"{output} cannot be written: {error.strerror or error}.")
    _show(facts)
    out.print(f"{output} ({in_bytes(size_of(output))}). Serve it: `ryz up --model {output}`.", soft_wrap=True)


def _floats(file: Path, scratch: Path) -> Path:
    """Convert a GGUF file to a directory of bf16 weights."""
    from gguf import GGMLQuantizationType  # noqa: PLC0415 (keeps `ryz --help` quick)

    from cli.models.convert.gguf_to_hf import GgufToHf  # noqa: PLC0415
    from cli.models.transfer_bar import transfer_bar  # noqa: PLC0415

    work = GgufToHf(file, GGMLQuantizationType.BF16)
    target = scratch / "floats"
    target.mkdir()
    with transfer_bar(f"{file.name} as bf16", work.total) as bar:
        work.write(target, bar.advance_to)
    return target


def _run(run: Any, draft: Path, facts: list[dict[str, Any]]) -> None:
    from rich.progress import (  # noqa: PLC0415 (keeps `ryz --help` quick)
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bar  # noqa: PLC0415

    from cli.console import err  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Bar(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=err, transient=True) as bar:
        task = bar.add_task("calibration text", total=None)

        def show(step: "Progress") -> None:
            bar.update(task, description=step.what, completed=step.done, total=step.total)
            if step.facts is not None:
                facts.append(step.facts)
                if not err.is_terminal:
                    err.print(f"{step.what}: done", soft_wrap=True)

        run(draft, show)


def _show(facts: list[dict[str, Any]]) -> None:
    """Print how often each way was the best, and what share of the outputs' energy each loses on average."""
    from cli.bench.report import print_table  # noqa: PLC0415 (keeps `ryz --help` quick)
    from cli.console import out  # noqa: PLC0415

    rows = []
    for unit in facts[0]["units"]:
        layers = [one["units"][unit] for one in facts]
        kept = sum(one["errors"][one["way"]] for one in layers) / len(layers)
        nearest = sum(one["errors"]["nearest"] for one in layers) / len(layers)
        modes = sorted({one["way"] for one in layers})
        named = ", ".join(f"{mode} {sum(one['way'] == mode for one in layers)}" for mode in modes)
        bits = sum(one["bits"] for one in layers) / len(layers)
        rows.append({"unit": unit, "bits": bits, "nearest": nearest, "kept": kept, "ways": named})
    columns = {
        "": "{unit}", "bits": "{bits:.1f}", "lost to nearest": "{nearest:.3%}", "lost": "{kept:.3%}",
        "ways, layers": "{ways}",
    }  # fmt: skip
    print_table("of the outputs' energy, on text that was not fitted to", rows, columns)
    fits = [one["fit"] for one in facts if "fit" in one]
    if fits:
        start, end = (sum(one[when] for one in fits) / len(fits) for when in ("start", "end"))
        out.print(f"Errors of whole layers, learned: {start:.3%} of the outputs before, {end:.3%} after.")


def _size(text: str) -> int | None:
    """Read a size such as 120MB."""
    from cli.console import fail  # noqa: PLC0415

    if not text:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]I?)?B?", text.strip().upper())
    if found is None:
        fail(f"--size takes bytes such as 120MB or 1.5GiB, got {text!r}.", 2)
    return int(float(found[1]) * _UNITS[found[2] or ""])
