"""`ryz sessions recover`: shows and brings back sessions that an earlier release did not read back."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.command_options import with_options

if TYPE_CHECKING:
    from cli.sessions.recovery.old_logs import OldLog

SHOWN = 50


@with_options
def recover(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="What `--redis-dir` named.", exists=True, file_okay=False)
    ],
    *,
    restore: Annotated[bool, typer.Option("--restore", help="Bring back what is shown.")] = False,
    discard: Annotated[
        bool, typer.Option("--discard", help="Leave it out, and keep what is in use.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, with all of them.")] = False,
) -> None:
    """Show sessions that are on disk and were lost at restarts; bring them back or leave them out.

    Until November 2026 the session store read back next to nothing of its log when it was started again. What
    it had stored is still in the log, up to the last rewrite. Sessions that were deleted since stay deleted.
    Where a session was begun anew under the same id, the newer one stays.

    Without an option nothing is changed. The old log is kept beside the new one. Stop the stack before.

    Examples:
        ryz sessions recover ~/sessions
        ryz sessions recover ~/sessions --restore
    """
    from cli.console import fail, out  # noqa: PLC0415 (keeps `ryz --help` quick)
    from cli.sessions.recovery.old_logs import examine, replace_log  # noqa: PLC0415
    from cli.visible import json_text  # noqa: PLC0415

    if restore and discard:
        fail("Give one of `--restore` and `--discard`.", 2)
    found = examine(directory)
    if as_json:
        print(json_text(_as_dict(found)))
    else:
        _show(found, directory, decided=restore or discard)
    if found.missing.is_empty or not (restore or discard):
        return
    kept = replace_log(directory, restore=restore)
    if not as_json:
        done = "They are back" if restore else "They are left out"
        out.print(f"\n{done}. The old log is in {kept}; delete it when all is well.", soft_wrap=True)


def _show(found: "OldLog", directory: Path, *, decided: bool) -> None:
    from rich.table import Table  # noqa: PLC0415

    from cli.console import called_as, out  # noqa: PLC0415

    if note := rewrite_note(found):
        out.print(note, soft_wrap=True)
    if found.missing.is_empty:
        out.print(f"Nothing in {directory} waits to be brought back.", soft_wrap=True)
        return
    out.print(f"On disk and not read back: {found.missing.describe()}.", soft_wrap=True)
    out.print(f"In use: {found.in_use.describe()}; they stay as they are.", soft_wrap=True)
    table = Table("tenant", "session", "turns", "tokens", "last turn", "pinned", box=None, header_style="dim")
    newest = sorted(found.missing.sessions.items(), key=lambda one: -one[1].updated_ms)
    for key, one in newest[:SHOWN]:
        pinned = "yes" if key in found.missing.pins else ""
        table.add_row(*key, str(one.turns), str(one.num_tokens), _day(one.updated_ms), pinned)
    if newest:
        out.print(table)
    if len(newest) > SHOWN:
        out.print(f"... and {len(newest) - SHOWN:,} older ones; `--json` has them all.", style="dim")
    if decided:
        return
    out.print(
        f"\n`{called_as()} sessions recover {directory} --restore` brings them back, `--discard` leaves them "
        "out.",
        soft_wrap=True,
    )


def rewrite_note(found: "OldLog") -> str:
    """Returns what is gone for good, in a sentence; empty if there was no rewrite."""
    if not found.rewritten_at:
        return ""
    return (
        f"The log was rewritten last on {_day(int(found.rewritten_at * 1000))}. What had not been read back "
        "by then is gone."
    )


def _day(at_ms: int) -> str:
    from datetime import UTC, datetime  # noqa: PLC0415

    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def _as_dict(found: "OldLog") -> dict[str, Any]:
    missing = found.missing
    return {
        "missing": {
            "sessions": [
                {
                    "tenant": key.tenant,
                    "session_id": key.name,
                    "turns": one.turns,
                    "tokens": one.num_tokens,
                    "updated_ms": one.updated_ms,
                    "pinned": key in missing.pins,
                }
                for key, one in missing.sessions.items()
            ],
            "responses": [
                {"tenant": tenant, "response_id": name} for tenant, name in sorted(missing.responses)
            ],
        },
        "in_use": {"sessions": len(found.in_use.sessions), "responses": len(found.in_use.responses)},
        "rewritten_ms": int(found.rewritten_at * 1000),
    }
