"""`ryz bench make-model`: the options, the refusals and the bar around `benchmarks/models/make_model.py`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from cli.console import err, fail, make_writable, out


def make_model(  # noqa: PLR0917 (typer takes options as arguments)
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory to write.")],
    shape: Annotated[
        str, typer.Option(help="Sizes to start from: tiny, 15m, 110m or 1.1b; the options below change them.")
    ] = "110m",
    dim: Annotated[int | None, typer.Option(help="Width of the model.")] = None,
    layers: Annotated[int | None, typer.Option(help="Number of layers.")] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads.")] = None,
    kv_heads: Annotated[int | None, typer.Option(help="Heads of keys and values.")] = None,
    ffn: Annotated[int | None, typer.Option(help="Width between the MLP's linears.")] = None,
    vocab: Annotated[int | None, typer.Option(help="Tokens of the vocabulary, at least 261.")] = None,
    context: Annotated[int | None, typer.Option(help="Positions that the model has.")] = None,
    tied: Annotated[
        bool | None,
        typer.Option("--tied/--untied", help="Share the embedding with the output layer, or not."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="fp32, fp16 or bf16.")] = "fp32",
    seed: Annotated[int, typer.Option(min=0, help="Decides the weights.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Write over the model that is in DIR.")] = False,
) -> None:
    """Write a Llama model of a given shape with random weights, for measuring.

    The directory has Hugging Face's format, with a tokenizer of the vocabulary's size and a chat template.
    """
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from benchmarks.models import make_model as maker  # noqa: PLC0415
    from benchmarks.models.random_weights import BYTES  # noqa: PLC0415
    from benchmarks.models.shapes import SHAPES, ShapeError  # noqa: PLC0415

    if shape not in SHAPES:
        fail(f"--shape is one of {', '.join(SHAPES)}, got {shape!r}.", exit_code=2)
    if dtype not in BYTES:
        fail(f"--dtype is one of {', '.join(BYTES)}, got {dtype!r}.", exit_code=2)
    given = {
        "dim": dim, "layers": layers, "heads": heads, "kv_heads": kv_heads, "ffn": ffn, "vocab": vocab,
        "context": context, "tied": tied,
    }  # fmt: skip
    sizes = replace(SHAPES[shape], **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    try:
        sizes.check()
    except ShapeError as error:
        fail(f"{error}.", exit_code=2)
    if directory.exists() and not directory.is_dir():
        fail(f"{directory} is a file: name a directory to write the model to.", exit_code=2)
    if not force and directory.is_dir() and any(directory.iterdir()):
        fail(f"The directory {directory} is not empty: name another, or add --force to write over it.", 2)
    make_writable(directory, "DIR")
    size = maker.parameters(sizes) * BYTES[dtype]
    with Progress(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn(), console=err
    ) as bar:
        task = bar.add_task("weights", total=size)
        try:
            made = maker.make_model(
                directory, sizes, dtype, seed, written=lambda count: bar.advance(task, count)
            )
        except OSError as error:
            fail(f"The model could not be written to {directory}: {error.strerror or error}.")
    out.print(
        f"{directory}: {made.parameters:,} parameters, {dtype}, {made.bytes / 2**20:,.0f} MiB in "
        f"{made.files} {'file' if made.files == 1 else 'files'}",
        markup=False,
        soft_wrap=True,
    )
