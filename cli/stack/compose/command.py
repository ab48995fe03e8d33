"""`ryz plan-containers`, which the container `plan` of compose.yaml runs before workers start."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from cli.command_options import with_options
from cli.console import CommandError, fail
from cli.stack.options import UpOptions

_SIZE = re.compile(r"(\d+)([bkmg]?)b?", re.IGNORECASE)
_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30}


@with_options
def plan_containers(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Gets a file for each group.")],
    *,
    options: UpOptions,
    models_file: Annotated[
        Path | None, typer.Option(help="As `--models`, unless it is empty.", show_default=False)
    ] = None,
    containers: Annotated[
        int, typer.Option(min=1, max=64, help="Containers of workers.", envvar="RYZ_GROUPS")
    ] = 2,
    ranks: Annotated[
        int, typer.Option(min=0, max=64, help="As `--tensor-parallel`.", envvar="RYZ_TENSOR_PARALLEL")
    ] = 0,
    limit: Annotated[
        str,
        typer.Option(help="Memory that each may take, such as 4g; 0: no limit.", envvar="RYZ_WORKER_MEMORY"),
    ] = "0",
    again: Annotated[bool, typer.Option("--again", help="Plan anew although nothing has changed.")] = False,
) -> None:
    """Plan the worker groups of Compose for this machine (docs/containers.md).

    Exit codes: 1 the models do not fit, 2 a mistake in a setting or in the models file.
    """
    from cli.console import out  # noqa: PLC0415 (keeps `ryz --help` quick)
    from cli.stack.compose.plan import plan_containers as plan  # noqa: PLC0415

    if models_file is not None and models_file.is_dir():
        fail("RYZ_MODELS_FILE names no file: Compose has made a directory there, which you can remove.", 2)
    if models_file is not None and models_file.exists() and models_file.read_bytes().strip():
        options = replace(options, models=models_file)
    settled = replace(options, tensor_parallel=ranks or options.tensor_parallel)
    try:
        text = plan(folder, settled, containers, _bytes_of(limit), again=again)
    except CommandError as error:  # in the words of `ryz up`
        fail(str(error).replace("`--groups 1`", "RYZ_GROUPS=1 in `.env`"), error.exit_code)
    out.print(text, markup=False, soft_wrap=True)


def _bytes_of(size: str) -> int:
    """Return what Docker takes a size for."""
    match = _SIZE.fullmatch(size.strip() or "0")
    if match is None:
        fail(f"RYZ_WORKER_MEMORY={size} is no size: write a whole number and k, m or g, such as 4g.", 2)
    return int(match[1]) * _UNITS[match[2].lower()]
