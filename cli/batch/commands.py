"""`ryz batch`: submit a file of requests, see how far it is, fetch the results, pause, cancel.

`batch/api.py` asks the gateway, `batch/view.py` shows the answers.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.command_groups import GatewayOptions, command_group
from cli.command_options import with_options
from cli.console import fail

if TYPE_CHECKING:
    from cli.batch.api import BatchApi

app = command_group(
    "Run files of requests when there is room: submit, follow, fetch, pause, cancel (docs/batches.md). "
    "Exit codes: 1 it failed, 2 wrong usage, 3 there is no such batch.",
)

InputFile = Annotated[Path, typer.Argument(metavar="FILE.jsonl", help="A request in each line.")]
BatchName = Annotated[str, typer.Argument(metavar="FILE.jsonl|BATCH", help="The file, or the batch's id.")]


@contextmanager
def _gateway(common: GatewayOptions) -> Iterator["BatchApi"]:
    from cli.batch.api import BatchApi  # noqa: PLC0415 (keeps `ryz --help` quick)
    from cli.http_api import find_url  # noqa: PLC0415

    api = BatchApi(find_url(common.url, common.state_dir, common.api_key), common.api_key)
    try:
        yield api
    finally:
        api.close()


def _print(api: "BatchApi", batch: dict[str, Any], as_json: bool) -> None:
    """Print the batch for machines, or a sentence for people, with the first error of its requests.

    A batch whose file is wrong is a failure.
    """
    from cli.batch.view import sentence  # noqa: PLC0415
    from cli.console import CommandError, out  # noqa: PLC0415
    from cli.visible import json_text  # noqa: PLC0415

    if as_json:
        print(json_text(batch))
    else:
        out.print(sentence(batch), markup=False, soft_wrap=True)
        if batch["error_file_id"] and batch["request_counts"]["failed"]:
            with suppress(CommandError):  # the file may be deleted by now
                first = api.first_error(batch["error_file_id"])
                out.print(f"  first error: {first}", markup=False, soft_wrap=True)
    if batch["status"] == "failed":
        raise typer.Exit(1)


@app.command()
@with_options
def submit(
    file: InputFile,
    *,
    window: Annotated[
        str, typer.Option(help="Time for the whole batch: a number and s, m, h or d, at most 30d.")
    ] = "24h",
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end, with a progress bar.")] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Make another batch, even if one was made of this file.")
    ] = False,
    common: GatewayOptions,
) -> None:
    """Make a batch of a file; the same file again shows the batch that it is already.

    Examples:
        ryz batch submit questions.jsonl --wait && ryz batch fetch questions.jsonl
    """
    from cli.batch.api import digest_of, readable  # noqa: PLC0415
    from cli.batch.view import follow  # noqa: PLC0415

    with _gateway(common) as api:
        readable(file)
        known = None if again else api.made_of(digest_of(file))
        if known is not None and known["status"] in {"failed", "cancelled", "expired"}:
            known = None
        batch = known or api.submit(file, window)
        if wait:
            batch = follow(lambda: api.find(batch["id"]))
        _print(api, batch, common.as_json)


@app.command()
@with_options
def status(
    name: BatchName,
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end, with a progress bar.")] = False,
    common: GatewayOptions,
) -> None:
    """Show how far a batch is."""
    from cli.batch.view import follow  # noqa: PLC0415

    with _gateway(common) as api:
        batch = api.find(name)
        if wait:
            batch = follow(lambda: api.find(batch["id"]))
        _print(api, batch, common.as_json)


@app.command()
@with_options
def fetch(
    name: BatchName,
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="For the results.  [default: FILE.output.jsonl]")
    ] = None,
    errors: Annotated[
        Path | None, typer.Option(help="For requests that failed.  [default: FILE.errors.jsonl]")
    ] = None,
    common: GatewayOptions,
) -> None:
    """Wait for the end of a batch, with a progress bar, and write its results.

    Exit code 1 if a request failed.
    """
    from cli.batch.view import follow  # noqa: PLC0415
    from cli.console import out  # noqa: PLC0415

    with _gateway(common) as api:
        batch = api.find(name)
        batch = follow(lambda: api.find(batch["id"]))
        stem = Path(name).with_suffix("") if Path(name).exists() else Path(batch["id"])
        for file_id, path in (
            (batch["output_file_id"], output or stem.with_name(f"{stem.name}.output.jsonl")),
            (batch["error_file_id"], errors or stem.with_name(f"{stem.name}.errors.jsonl")),
        ):
            if file_id:
                _write(api, file_id, path)
                if not common.as_json:
                    out.print(f"wrote {path}", markup=False, soft_wrap=True)
        _print(api, batch, common.as_json)
        if batch["error_file_id"]:
            raise typer.Exit(1)


def _write(api: "BatchApi", file_id: str, path: Path) -> None:
    draft = path.with_name(f".{path.name}.part")
    try:
        with api.content(file_id) as (size, parts), draft.open("wb") as file:
            for part in parts:
                file.write(part)
            if file.tell() != size:
                fail(f"The connection broke after {file.tell()} of {size} bytes of {path}; fetch it again.")
        draft.replace(path)
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror}.")
    finally:
        draft.unlink(missing_ok=True)


@app.command()
@with_options
def cancel(name: BatchName, *, common: GatewayOptions) -> None:
    """End a batch; `fetch` brings what was done."""
    _change(name, "cancel", common)


@app.command()
@with_options
def pause(name: BatchName, *, common: GatewayOptions) -> None:
    """Hold the requests of a batch back; those that run end."""
    _change(name, "pause", common)


@app.command()
@with_options
def resume(name: BatchName, *, common: GatewayOptions) -> None:
    """Let a paused batch go on."""
    _change(name, "resume", common)


def _change(name: str, action: str, common: GatewayOptions) -> None:
    with _gateway(common) as api:
        _print(api, api.change(api.find(name)["id"], action), common.as_json)


@app.command("list")
@with_options
def list_batches(
    *,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="So many at most.")] = 20,
    common: GatewayOptions,
) -> None:
    """List batches, newest first."""
    from itertools import islice  # noqa: PLC0415

    from cli.batch.view import table  # noqa: PLC0415
    from cli.console import out  # noqa: PLC0415
    from cli.visible import json_text  # noqa: PLC0415

    with _gateway(common) as api:
        found = list(islice(api.all(), limit))
    if common.as_json:
        print(json_text({"data": found}))
    elif found:
        out.print(table(found))
    else:
        out.print("There are no batches.")
