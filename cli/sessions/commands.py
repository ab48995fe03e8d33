"""`ryz sessions`: conversations as objects, over the HTTP API.

`sessions/api.py` asks the gateway, `sessions/view.py` shows the answers.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.command_groups import GatewayOptions, command_group
from cli.command_options import with_options
from cli.sessions.recovery.recover_command import recover

if TYPE_CHECKING:
    from cli.sessions.api import SessionsApi

app = command_group(
    "List, look at, pin, move, export, import, delete and recover sessions. "
    "Exit codes: 1 it failed, 2 wrong usage, 3 there is no such session, 4 it exists already or is pinned.",
)

app.command("recover")(recover)

SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="A group, as `ryz status` shows them.")]


@contextmanager
def _gateway(common: GatewayOptions) -> Iterator["SessionsApi"]:
    from cli.http_api import find_url  # noqa: PLC0415 (keeps `ryz --help` quick)
    from cli.sessions.api import SessionsApi  # noqa: PLC0415

    url = find_url(common.url, common.state_dir, common.api_key)
    api = SessionsApi(url, common.api_key, timeout_s=60.0)
    try:
        yield api
    finally:
        api.close()


def _print(value: dict[str, Any], text: str, as_json: bool) -> None:
    """Print the object for machines, or a sentence for people."""
    from cli.console import out  # noqa: PLC0415
    from cli.visible import json_text  # noqa: PLC0415

    if as_json:
        print(json_text(value))
    else:
        out.print(text, markup=False, soft_wrap=True)


def can_ask() -> bool:
    """Return True if a person can answer a question."""
    return sys.stdin.isatty()


@app.command("list")
@with_options
def list_sessions(
    *,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="So many at most.")] = 50,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    spare: Annotated[
        bool,
        typer.Option("--spare/--no-spare", help="With spare sessions, which are those of single calls."),
    ] = True,
    common: GatewayOptions,
) -> None:
    """List sessions, newest first.

    Examples:
        ryz sessions list --no-spare
        ryz sessions list --all --json
    """
    from cli.console import err, out  # noqa: PLC0415
    from cli.sessions.view import listing  # noqa: PLC0415

    with _gateway(common) as api:
        sessions, more = api.newest(None if everything else limit, spare=spare)
    if common.as_json:
        _print({"object": "list", "data": sessions, "has_more": more}, "", True)
        return
    out.print(listing(sessions))
    if more:
        err.print("There are more; `--all` shows them.", style="dim", markup=False)


@app.command("create")
@with_options
def create(
    session: Annotated[str, typer.Argument(metavar="[SESSION]", help="Its id; one is made.")] = "",
    *,
    model: Annotated[str, typer.Option(help="The model.  [default: the one that is served]")] = "",
    system: Annotated[str, typer.Option(help="The system prompt.", show_default=False)] = "",
    pin_to: Annotated[str, typer.Option("--pin", help="Bind it to this group.", show_default=False)] = "",
    common: GatewayOptions,
) -> None:
    """Begin a session. Talking under a new id does that too.

    Examples:
        ryz sessions create tea --system "Be brief." --pin g0
        ryz chat --session tea
    """
    wanted: dict[str, Any] = {"session_id": session, "model": model, "pinned_group": pin_to}
    wanted = {name: value for name, value in wanted.items() if value}
    if system:
        wanted["messages"] = [{"role": "system", "content": system}]
    with _gateway(common) as api:
        made = api.create(wanted)
    _print(made, made["session_id"], common.as_json)


@app.command("show")
@with_options
def show(
    session: SessionId,
    *,
    messages: Annotated[bool, typer.Option("--messages", "-m", help="With the text.")] = False,
    common: GatewayOptions,
) -> None:
    """Show a session: tokens, stored KV, groups that have it in memory, where its next turn would go.

    Examples:
        ryz sessions show tea --messages
    """
    from cli.console import out  # noqa: PLC0415
    from cli.sessions.view import detail  # noqa: PLC0415

    with _gateway(common) as api:
        shown = api.show(session, messages=messages)
    if common.as_json:
        _print(shown, "", True)
    else:
        out.print(detail(shown), soft_wrap=True)


@app.command("pin")
@with_options
def pin(
    session: SessionId,
    group: GroupName,
    common: GatewayOptions,
) -> None:
    """Bind all turns of a session to a group.

    Examples:
        ryz sessions pin tea g1
    """
    with _gateway(common) as api:
        _print(api.pin(session, group), f"{session} is pinned to {group}.", common.as_json)


@app.command("unpin")
@with_options
def unpin(
    session: SessionId,
    common: GatewayOptions,
) -> None:
    """Let the router choose again."""
    with _gateway(common) as api:
        _print(api.unpin(session), f"{session} is free.", common.as_json)


@app.command("move")
@with_options
def move(
    session: SessionId,
    group: GroupName,
    common: GatewayOptions,
) -> None:
    """Bring a session's KV into a group's memory, so that its next turn goes there.

    Examples:
        ryz sessions move tea g1
    """
    with _gateway(common) as api:
        moved = api.move(session, group)
    counts = f"{moved['cached_tokens']:,} of {moved['tokens']:,} tokens in memory"
    _print(moved, f"{session} is at {group}: {counts}, {moved['fetched_tokens']:,} fetched.", common.as_json)


@app.command("export")
@with_options
def export(
    session: SessionId,
    *,
    output: Annotated[
        str, typer.Option("--output", "-o", help="The file; `-`: print it.  [default: named after it]")
    ] = "",
    force: Annotated[bool, typer.Option("--force", "-f", help="Also over a file that is there.")] = False,
    common: GatewayOptions,
) -> None:
    """Write a session to a file: text and tokens, no KV, which any stack computes anew.

    Examples:
        ryz sessions export tea -o tea.json
        ryz sessions export tea -o - | ryz sessions import - --url http://other:8000
    """
    from cli.sessions.files import write_new  # noqa: PLC0415
    from cli.visible import visible_json  # noqa: PLC0415

    with _gateway(common) as api:
        name, content = api.export(session)
    if output == "-" and sys.stdout.isatty():
        sys.stdout.write(visible_json(content.decode(errors="replace")))
        return
    if output == "-":
        sys.stdout.buffer.write(content)
        return
    path = write_new(Path(output or name), content, force=force)
    written = {"object": "session.exported", "session_id": session, "file": str(path), "bytes": len(content)}
    _print(written, f"{session} is in {path} ({len(content):,} bytes).", common.as_json)


@app.command("import")
@with_options
def import_session(
    file: Annotated[str, typer.Argument(metavar="FILE", help="An exported file; `-`: read it from a pipe.")],
    *,
    session: Annotated[
        str, typer.Option("--session", help="Under this id.  [default: the file's]", show_default=False)
    ] = "",
    replace: Annotated[bool, typer.Option("--replace", help="Also over a session that is there.")] = False,
    common: GatewayOptions,
) -> None:
    """Begin a session from an exported file; the model's weights must be the same.

    Examples:
        ryz sessions import tea.json
        ryz sessions import tea.json --session tea-again
    """
    from cli.sessions.files import read_file  # noqa: PLC0415

    content = read_file(file)
    with _gateway(common) as api:
        made = api.import_file(content, session, replace=replace)
    name = made["session_id"]
    _print(made, f"{name}: {made['num_messages']} messages, {made['tokens']:,} tokens.", common.as_json)


@app.command("delete")
@with_options
def delete(
    session: SessionId,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    common: GatewayOptions,
) -> None:
    """Delete a session: its text, its tokens and its KV.

    Examples:
        ryz sessions delete tea --yes
    """
    from cli.console import fail  # noqa: PLC0415

    if not yes:
        if not can_ask():
            fail("Deleting cannot be undone, and the input is no terminal to ask on: say `--yes`.", 2)
        if not typer.confirm(f"Delete session {session} with its text and its KV?", err=True):
            fail("Nothing was deleted.")
    with _gateway(common) as api:
        api.delete(session)
    deleted = {"object": "session.deleted", "session_id": session, "deleted": True}
    _print(deleted, f"{session} is deleted.", common.as_json)
