"""Shows models of a running fleet: the table of `ryz models status`, and the progress of a load."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cli.console import err
from cli.stack.sizing_text import size_words
from shared.client import ModelWish
from shared.messages import Adapter, ModelState

_STYLES = {"ready": "green", "loading": "cyan", "draining": "yellow", "failed": "red"}
_WISHES = {
    "load": "an operator has it loaded",
    "sleep": "an operator put it to sleep",
    "unload": "an operator unloaded it",
}
ShowState = Callable[[ModelState], None]


def as_dict(state: ModelState) -> dict[str, Any]:
    """Return plain values for JSON, defaults included."""
    values = {name: msgspec.to_builtins(getattr(state, name)) for name in state.__struct_fields__}
    card = values.pop("card")
    return {"name": state.card.name, "context_length": state.card.context_length, **values} | (
        {"fingerprint": card["fingerprint"]} if card.get("fingerprint") else {}
    )


def listing(states: Sequence[ModelState]) -> RenderableType:
    """Return a table with a row for each model."""
    if not states:
        return Text(
            "No host loads models here: `ryz up --models FILE` starts one. `ryz groups list` shows what runs."
        )
    table = Table(box=None, padding=(0, 2, 0, 0))
    right = {"groups", "waiting", "memory", "load"}
    for name in ("model", "aliases", "state", "groups", "waiting", "memory", "load", "why"):
        table.add_column(name, justify="right" if name in right else "left", header_style="dim",
                         overflow="fold")  # fmt: skip
    for state in states:
        table.add_row(
            Text(state.card.name),
            Text(" ".join(state.aliases)),
            Text(state.phase, style=_STYLES.get(state.phase, "")),
            f"{state.groups_ready}/{state.groups}",
            str(state.waiting),
            memory(state),
            f"{state.load_s:.1f} s" if state.load_s else "-",
            Text(remark(state)),
        )
    return table


def adapter_listing(adapters: Sequence[Adapter]) -> Table:
    """Return a table with a row for each adapter."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("adapter", "rank", "memory", "tenant", "source"):
        table.add_column(name, justify="right" if name in {"rank", "memory"} else "left", header_style="dim",
                         overflow="fold")  # fmt: skip
    for one in adapters:
        cells = one.model, str(one.rank), size_words(one.num_bytes), one.tenant, one.source
        table.add_row(*map(Text, cells))
    return table


def adapter_dict(adapter: Adapter) -> dict[str, Any]:
    """Return plain values for JSON."""
    values = {name: getattr(adapter, name) for name in adapter.__struct_fields__}
    return {"model": adapter.model, **values}


def adapter_words(adapter: Adapter) -> str:
    """Return what an adapter is, in words."""
    return f"rank {adapter.rank}, {size_words(adapter.num_bytes)} in each group that uses it"


def memory(state: ModelState) -> str:
    """Return the memory that a model's groups take, or that the first one would."""
    if state.groups:
        return size_words(state.charged_bytes)
    return f"({size_words(state.first_bytes)})" if state.first_bytes else "-"


def remark(state: ModelState) -> str:
    """Return what else is to be said of a model's state."""
    parts = [_WISHES.get(state.why, state.why)] if state.why else []
    if state.phase == "failed" and state.retry_s:
        parts.append(f"again in {state.retry_s:.0f} s")
    if state.pinned:
        parts.append("pinned")
    return ", ".join(parts)


def outcome(wish: ModelWish, state: ModelState) -> str:
    """Return the last line of a command: what the model is now."""
    name = state.card.name
    if not wish.is_met(state):
        return f"{name} is {state.phase}; the wish to {wish.action} it is noted."
    if not state.groups:
        return f"No group of {name} runs any more: it is {state.phase}."
    groups = "1 group" if state.groups_ready == 1 else f"{state.groups_ready} groups"
    return f"{name} is {state.phase}: {groups}, {size_words(state.charged_bytes)}."


@contextmanager
def loading_bar(wish: ModelWish, before: ModelState) -> Iterator[ShowState]:
    """Show how a model changes: a bar on a terminal, else a line for each change.

    The bar's length is how long the last load took; of a model that was not loaded yet it only moves.
    """
    if not err.is_terminal:
        yield _lines(before)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    known_s = before.load_s if wish.wants_groups else 0.0
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task(_line(before), total=known_s or None)
        began = time.monotonic()

        def show(state: ModelState) -> None:
            share_s = min(time.monotonic() - began, 0.95 * known_s) if known_s else None
            progress.update(task, description=_line(state), completed=share_s)

        yield show


def _lines(before: ModelState) -> ShowState:
    last = _line(before)

    def show(state: ModelState) -> None:
        nonlocal last
        if (line := _line(state)) != last:
            err.print(line, soft_wrap=True)
        last = line

    return show


def _line(state: ModelState) -> str:
    return f"{state.card.name}: {state.phase}, {state.groups_ready} of {state.groups} groups ready"
