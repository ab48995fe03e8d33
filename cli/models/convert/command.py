"""`ryz models convert`: options, refusals and bar of the conversions."""

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.command_options import with_options

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType


@with_options
def convert(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A model's name or path.")],
    target: Annotated[Path, typer.Argument(metavar="DST", help="FILE.gguf, or a directory to write.")],
    *,
    kind: Annotated[
        str,
        typer.Option(
            "--type",
            help="F32, F16 or BF16; for a GGUF file also Q8_0, Q4_0, Q4_1, Q5_0, Q5_1 and what else the gguf "
            "package can make.  [default: as stored; quantized ones as F32 in a directory]",
            show_default=False,
        ),
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Write over DST.")] = False,
) -> None:
    """Convert a GGUF file to a Hugging Face directory, or a directory to a GGUF file.

    Examples:
        ryz models convert smollm2-135m ./smollm2
        ryz models convert ./my-model my-model.gguf --type Q8_0
    """
    from cli.console import fail, out  # noqa: PLC0415 (keeps `ryz --help` quick)
    from cli.models.convert.gguf_to_hf import GgufToHf  # noqa: PLC0415
    from cli.models.convert.hf_to_gguf import HfToGguf  # noqa: PLC0415
    from cli.models.resolve import resolve_model  # noqa: PLC0415
    from cli.models.store import in_bytes, require_space, size_of  # noqa: PLC0415
    from cli.models.transfer_bar import transfer_bar  # noqa: PLC0415
    from services.worker.engine.config.json_fields import ModelError  # noqa: PLC0415
    from services.worker.gguf.header_bytes import BadGguf  # noqa: PLC0415

    path = resolve_model(source, pull=False)
    to_gguf = path.is_dir()
    if to_gguf != (target.suffix == ".gguf"):
        if to_gguf:
            fail(
                f"{path} is a directory, so it becomes a file: name one, as {target.with_suffix('.gguf')}.", 2
            )
        fail(f"{path} is a GGUF file, so it becomes a directory: name one, as {target.with_suffix('')}.", 2)
    if target.exists() and not force:
        fail(f"There is {target} already: name another, or add --force to write over it.", 2)
    if target.exists() and (target.is_dir() == to_gguf or target.resolve() == path.resolve()):
        fail(f"{target} is not written over: it is of the other kind than what would be written.", 2)
    draft = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        work = HfToGguf(path, _kind(kind, to_gguf)) if to_gguf else GgufToHf(path, _kind(kind, to_gguf))
        target.parent.mkdir(parents=True, exist_ok=True)
        require_space(target, work.needed)
        if not to_gguf:
            draft.mkdir()
        with transfer_bar(path.name, work.total) as bar:
            work.write(draft, bar.advance_to)
        _put(draft, target)
    except (BadGguf, ModelError) as error:
        fail(f"{error}.", 2)
    except OSError as error:
        fail(f"{target} cannot be written: {error.strerror or error}.")
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        draft.unlink(missing_ok=True)
    out.print(f"{target} ({in_bytes(size_of(target))}). Serve it: `ryz up --model {target}`.", soft_wrap=True)


def _put(draft: Path, target: Path) -> None:
    """Put what was written to its place in one step."""
    if target.is_dir():  # a directory cannot be replaced by another one in one step
        former = target.with_name(f".{target.name}.{os.getpid()}.former")
        target.replace(former)
        draft.replace(target)
        shutil.rmtree(former)
    else:
        draft.replace(target)


def _kind(given: str, to_gguf: bool) -> "GGMLQuantizationType | None":
    """Return the type of that name."""
    from gguf import GGMLQuantizationType  # noqa: PLC0415 (keeps `ryz --help` quick)

    from cli.console import fail  # noqa: PLC0415
    from cli.models.convert.tensor_stream import FLOATS, can_quantize  # noqa: PLC0415

    if not given:
        return None
    known = [kind for kind in GGMLQuantizationType if kind in FLOATS or (to_gguf and can_quantize(kind))]
    found = next((kind for kind in known if kind.name == given.upper()), None)
    if found is None:
        fail(f"`--type {given}`: choose one of {', '.join(kind.name for kind in known)}.", 2)
    return found
