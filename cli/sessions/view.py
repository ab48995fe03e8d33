"""Lays out what `ryz sessions` shows."""

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cli.status.view import duration
from cli.visible import visible


def listing(sessions: list[dict[str, Any]]) -> RenderableType:
    """Return a table with a row for each session."""
    if not sessions:
        return Text("No sessions.")
    columns = ("session", "model", "turns", "tokens", "KV", "last at", "pinned to", "age", "expires")
    table = _table(*columns, right=("turns", "tokens", "KV", "age", "expires"))
    for one in sessions:
        table.add_row(
            Text(visible(one["session_id"])),
            Text(one["model"]),
            str(one["turns"]),
            f"{one['tokens']:,}",
            size(one["bytes"]),
            one["last_group"] or "-",
            one["pinned_group"] or "-",
            duration(one["age_s"]),
            duration(one["ttl_s"]) if one["ttl_s"] else "-",
        )
    return table


def detail(session: dict[str, Any]) -> RenderableType:
    """Return everything about one session, a line each, then its groups and its text."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in (
        ("session", visible(session["session_id"])),
        ("tenant", session["tenant"]),
        ("model", session["model"]),
        ("turns", f"{session['turns']} ({session['num_messages']} messages, {session['tokens']:,} tokens)"),
        ("KV in the store", f"{size(session['bytes'])} in {session['blocks']:,} blocks"),
        ("age", duration(session["age_s"])),
        ("expires in", duration(session["ttl_s"]) if session["ttl_s"] else "-"),
        ("home", session.get("home") or "-"),
        ("last group", session["last_group"] or "-"),
        ("pinned to", session["pinned_group"] or "-"),
    ):
        facts.add_row(Text(name, style="dim"), Text(str(value)))
    parts: list[RenderableType] = [facts]
    if session.get("groups"):
        parts.append(_groups(session["groups"], session["tokens"]))
    for message in session.get("messages") or ():
        parts.append(Text.assemble((f"{message['role']}: ", "bold"), visible(message["content"])))
    return Group(*parts)


def _groups(groups: list[dict[str, Any]], tokens: int) -> Table:
    table = _table("KV in memory of", "tokens", "ranks", "format", right=("tokens", "ranks"))
    for one in groups:
        cached = f"{one['cached_tokens']:,} of {tokens:,}"
        table.add_row(one["group"], cached, str(one["tensor_parallel"]), one["kv_format"])
    return table


def _table(*columns: str, right: tuple[str, ...]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(
            name, justify="right" if name in right else "left", header_style="dim", overflow="fold"
        )
    return table


def size(num_bytes: float) -> str:
    """Return bytes in the unit that leaves one to four digits before the point."""
    amount = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:,.1f} TiB"
