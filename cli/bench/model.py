"""`ryz bench make-model`: options, refusals and bar of the maker of models with random weights."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from benchmarks.lib.measuring import BenchError
from benchmarks.lib.options import Word
from benchmarks.models.shapes import BYTES, SHAPES, ModelShape
from cli.command_options import with_options
from cli.console import err, fail, make_writable, out


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeModelOptions:
    """The options of `ryz bench make-model`; sizes that are None are those of the named shape."""

    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory to write.")]
    shape: Annotated[
        str,
        Option(help="Sizes to start from: tiny, 15m, 110m, 110m-moe or 1.1b; the options below change them."),
        Word(tuple(SHAPES)),
    ] = "110m"
    dim: Annotated[int | None, Option(help="Width of the model.")] = None
    layers: Annotated[int | None, Option(help="Number of layers.")] = None
    heads: Annotated[int | None, Option(help="Attention heads.")] = None
    kv_heads: Annotated[int | None, Option(help="Heads of keys and values.")] = None
    ffn: Annotated[int | None, Option(help="Width between the MLP's linears.")] = None
    vocab: Annotated[int | None, Option(help="Tokens of the vocabulary, at least 261.")] = None
    context: Annotated[int | None, Option(help="Positions that the model has.")] = None
    experts: Annotated[int | None, Option(help="Experts of a layer, each of the width --ffn; 0: none.")] = (
        None
    )
    chosen: Annotated[int | None, Option(help="Experts that a token takes.")] = None
    tied: Annotated[
        bool | None, Option("--tied/--untied", help="Share the embedding with the output layer, or not.")
    ] = None
    dtype: Annotated[str, Option(help="fp32, fp16 or bf16."), Word(tuple(BYTES))] = "fp32"
    seed: Annotated[int, Option(min=0, help="Decides the weights.")] = 0
    force: Annotated[bool, Option("--force", help="Write over the model that is in DIR.")] = False

    def sizes(self) -> ModelShape:
        """Return the named shape with the sizes that were given."""
        given = {field.name: getattr(self, field.name) for field in fields(ModelShape)}
        return replace(SHAPES[self.shape], **{name: size for name, size in given.items() if size is not None})


@with_options
def make_model(options: MakeModelOptions) -> None:
    """Write a Llama or Mixtral model of a given shape with random weights, for measuring.

    The directory has Hugging Face's format, with a tokenizer of the vocabulary's size and a chat template.
    """
    from rich.progress import (  # noqa: PLC0415 (keeps `ryz bench --help` quick)
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from benchmarks.models import make_model as maker  # noqa: PLC0415

    directory, dtype, sizes = options.directory, options.dtype, options.sizes()
    try:
        sizes.check()
    except BenchError as error:
        fail(f"{error}.", exit_code=2)
    if directory.exists() and not directory.is_dir():
        fail(f"{directory} is a file: name a directory to write the model to.", exit_code=2)
    if not options.force and directory.is_dir() and any(directory.iterdir()):
        fail(f"The directory {directory} is not empty: name another, or add --force to write over it.", 2)
    make_writable(directory, "DIR")
    size = maker.parameters(sizes) * BYTES[dtype]
    with Progress(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn(), console=err
    ) as bar:
        task = bar.add_task("weights", total=size)
        try:
            made = maker.make_model(
                directory, sizes, dtype, options.seed, written=lambda count: bar.advance(task, count)
            )
        except OSError as error:
            fail(f"The model could not be written to {directory}: {error.strerror or error}.")
    out.print(
        f"{directory}: {made.parameters:,} parameters, {dtype}, {made.bytes / 2**20:,.0f} MiB in "
        f"{made.files} {'file' if made.files == 1 else 'files'}",
        soft_wrap=True,
    )
