"""Lays out `ryz top`: groups, ranks and news, with as many columns as the terminal has room for."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cli.status.view import state_text
from cli.top.fleet_rates import FleetRates, GroupRates, RankRates

T = TypeVar("T")
NEWS = 5  # lines
LONG_STEP_S = 1.0  # a step that takes longer is shown
_GAP = 2
# kinds of a rank's time that have a column; the others are shown as one
_KINDS = ("linears", "attention", "collectives", "sampling", "idle")


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """A column.

    Attributes:
        cell: Makes the text of a row.
        weight: In a narrow terminal columns of lower weight go first.
        right: Numbers stand at the right.
    """

    title: str
    cell: Callable[[T], str | Text]
    weight: int
    right: bool = True


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 10 or not value else f"{value:.1f}"


def _pair(values: tuple[float, float] | None) -> str:
    if values is None:
        return "-"
    return " / ".join(f"{value:.1f}" if value < 10 else f"{value:.0f}" for value in values)


def _memory(rank: RankRates) -> str:
    return f"{rank.memory_bytes / 2**20:,.0f} MiB" if rank.memory_bytes else "-"


def _note(rank: RankRates) -> Text:
    if rank.running_step_s >= LONG_STEP_S:
        return Text(f"its step has run for {rank.running_step_s:.1f} s", style="red")
    return Text("the others wait for it" if rank.is_slow else "", style="yellow")


def _kind(kind: str) -> Callable[[RankRates], str]:
    return lambda rank: _percent(rank.shares.get(kind) if rank.shares else None)


def _others(rank: RankRates) -> str:
    if not rank.shares:
        return "-"
    return _percent(sum(share for kind, share in rank.shares.items() if kind not in _KINDS))


GROUPS: list[Column[GroupRates]] = [
    Column("group", lambda one: one.group, 100, right=False),
    Column("state", lambda one: state_text(one.state), 99, right=False),
    Column("model", lambda one: one.model, 10, right=False),
    Column("run", lambda one: str(one.running), 90),
    Column("wait", lambda one: str(one.waiting), 89),
    Column("queued tokens", lambda one: f"{one.queued_tokens:,}", 20),
    Column("KV", lambda one: _percent(one.kv_usage), 70),
    Column("tokens/s", lambda one: _rate(one.tokens_per_s), 80),
    Column("req/s", lambda one: _rate(one.requests_per_s), 40),
    Column("TTFT ms p50 / p99", lambda one: _pair(one.first_token_ms), 60),
    Column("ITL ms p50 / p99", lambda one: _pair(one.inter_token_ms), 59),
    Column("drafts right", lambda one: _percent(one.drafts_right), 15),
    Column("", lambda one: Text(one.trouble, style="red"), 50, right=False),
]
RANKS: list[Column[RankRates]] = [
    Column("group", lambda one: one.group, 100, right=False),
    Column("rank", lambda one: str(one.rank), 100),
    Column("state", lambda one: state_text(one.state), 50, right=False),
    Column("steps/s", lambda one: _rate(one.steps_per_s), 80),
    Column("step ms", lambda one: "-" if one.step_ms is None else f"{one.step_ms:.2f}", 90),
    Column("linears", _kind("linears"), 70),
    Column("attention", _kind("attention"), 69),
    Column("collectives", _kind("collectives"), 72),
    Column("sampling", _kind("sampling"), 40),
    Column("other", _others, 39),
    Column("idle", _kind("idle"), 71),
    Column("memory", _memory, 55),
    Column("", _note, 65, right=False),
]


def render(fleet: FleetRates, width: int, broker: str, interval_s: float) -> RenderableType:
    """Returns the whole view.

    Args:
        width: Columns of the terminal.
        broker: Its address, without passwords.
        interval_s: Between two readings, for the head line.
    """
    clock = time.strftime("%H:%M:%S", time.localtime(fleet.at_s))
    head = Text(f"ryz top {clock}, every {interval_s:g} s, broker {broker}   q: quit", style="bold")
    parts: list[RenderableType] = [head]
    if fleet.problem:
        parts.append(Text(fleet.problem, style="red"))
    else:
        parts.append(Text(_services(fleet)))
    if fleet.groups:
        parts += [Text(), fitting_table(GROUPS, fleet.groups, width)]
    if fleet.ranks:
        parts += [Text(), fitting_table(RANKS, fleet.ranks, width)]
    if fleet.news:
        parts.append(Text())
        for at_s, event in fleet.news[-NEWS:]:
            parts.append(Text(f"{time.strftime('%H:%M:%S', time.localtime(at_s))} {event}", style="yellow"))
    return Group(*parts)


def _services(fleet: FleetRates) -> str:
    counts = [f"{name} {count}" for name, count in sorted(fleet.services.items())]
    known = [one.tokens_per_s for one in fleet.groups if one.tokens_per_s is not None]
    parts = [", ".join(counts), f"{fleet.flowing} requests at the gateways"]
    if known:
        parts.append(f"{sum(known):,.0f} tokens/s")
    if fleet.sessions is not None:
        parts.append(f"{fleet.sessions} sessions")
    return "; ".join(parts)


def fitting_table(columns: Sequence[Column[T]], rows: Sequence[T], width: int) -> Table:
    """Returns a table without the columns for which the terminal is too narrow.

    Args:
        columns: All columns, in their order.
        width: Columns of the terminal.
    """
    cells = {column.title: [column.cell(row) for row in rows] for column in columns}
    needed = {
        title: max([len(title), *(len(cell) for cell in found)]) if any(map(str, found)) else 0
        for title, found in cells.items()
    }
    shown = [column for column in columns if needed[column.title]]
    while len(shown) > 1 and sum(needed[one.title] + _GAP for one in shown) - _GAP > width:
        shown.remove(min(shown, key=lambda one: one.weight))
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, show_edge=False)
    for column in shown:
        table.add_column(
            column.title, justify="right" if column.right else "left", header_style="dim", no_wrap=True
        )
    for index in range(len(rows)):
        table.add_row(*(cells[column.title][index] for column in shown))
    return table
