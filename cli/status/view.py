"""Lays out the tables of `ryz status`."""

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cli.groups.silent_groups import ENDED_WELL, SilentGroup, silent_groups
from cli.status.query import StatusReport
from shared.address import redact

GOOD, BAD = {"ready", "up", "used"}, {"failed", "lost", "away", "no answer", "no store", "disk full"}

STORE_STATES = {"away": "no store", "disk full": "disk full"}  # of the KV state service, which runs on

_ASKED = {"gateway", "router", "kvstate"}  # routers report the state of a leader that is silent
_LED = {"worker": "(leader)"}  # its ranks have a table of their own


def render(report: StatusReport) -> RenderableType:
    """Return all tables: gateways first, stores last."""
    if not report.services:
        return Text(report.problem, style="red")
    parts: list[RenderableType] = [Text(_headline(report)), _services(report)]
    groups = report.groups()
    if groups:
        parts += [_groups(report, groups), *_guests(groups), _ranks(groups)]
    return Group(*parts)


def _headline(report: StatusReport) -> str:
    up = report.supervisor
    where = f"API {up.url}, model{'s' if len(up.models) > 1 else ''} {', '.join(up.models)}\n" if up else ""
    sessions = report.sessions()
    count = "" if sessions is None else f", {sessions} session{'' if sessions == 1 else 's'}"
    return f"{where}broker {redact(report.nats_url)}{count}{_read_at_start(report)}{_models(report)}"


def _models(report: StatusReport) -> str:
    """The models that hosts offer, by phase, and the router that commands the hosts; empty without any."""
    routers = report.of_kind("router")
    phases: dict[str, list[str]] = next(
        (one.detail["models"] for one in routers if one.detail.get("models")), {}
    )
    if not phases:
        return ""
    holders = [one.instance_id for one in routers if one.detail.get("models_lease", {}).get("held")]
    parts = "; ".join(f"{phase}: {', '.join(names)}" for phase, names in sorted(phases.items()))
    return f"\nmodels {parts} (controller: {', '.join(holders) or 'no router'})"


def _read_at_start(report: StatusReport) -> str:
    """What kvstate counted at its own start or a later one of Redis; empty if nothing was there."""
    details = [one.detail for one in report.of_kind("kvstate") if one.detail.get("store_read")]
    if not details:
        return ""
    read, refused = details[0]["store_read"], details[0].get("store_refused_commands", 0)
    counts = ", ".join(f"{number:,} {kind}" for kind, number in read.items() if number)
    text = f"\nin Redis at the last start of kvstate or Redis: {counts}" if counts else ""
    if refused:
        text += f"\nRedis refused {refused:,} commands of its log: docs/operations.md, RyzSessionLogRefused"
    return text


def _services(report: StatusReport) -> Table:
    table = _table("Services", "service", "state", "pid", "up", "restarts", "instance", right=(2, 3, 4))
    started = {one.pid: one.restarts for one in report.supervisor.services} if report.supervisor else {}
    for one in report.services:
        restarts = str(started[one.pid]) if one.pid in started else "-"
        table.add_row(
            " ".join(filter(None, (one.service, one.detail.get("group"), _LED.get(one.service)))),
            state_text(STORE_STATES.get(one.detail.get("store", ""), one.state)),
            str(one.pid),
            duration(one.uptime_s),
            restarts,
            one.instance_id,
        )
    answered = {one.pid for one in report.services}
    for known in report.supervisor.services if report.supervisor else ():
        if known.name.partition("-")[0] in _ASKED and known.pid not in answered:
            table.add_row(known.name, state_text("no answer"), str(known.pid), "-", str(known.restarts), "")
    return table


def _groups(report: StatusReport, groups: list[dict[str, Any]]) -> Table:
    table = _table(
        "Groups", "group", "state", "model", "running", "waiting", "free blocks", "cached", "sent by routers",
        "KV store", right=(3, 4, 5, 6, 7),
    )  # fmt: skip
    sent: dict[str, int] = {}
    for router in report.of_kind("router"):
        for seen in router.detail.get("groups", []):
            name = str(seen.get("group"))
            sent[name] = sent.get(name, 0) + int(seen.get("sent_total", 0))
    silent = {group.group: group for group in silent_groups(report.services)}
    for group in groups:
        name = str(group.get("group"))
        if name in silent:
            table.add_row(name, state_text(silent[name].state), silent[name].model)
            table.add_row("", story_text(silent[name]))
            continue
        blocks = f"{group.get('free_blocks', '?')} of {group.get('total_blocks', '?')}"
        counts = (
            str(group.get("running", "?")),
            str(group.get("waiting", "?")),
            blocks,
            str(group.get("cached_blocks", "?")),
            str(sent.get(name, 0)),
        )
        store = state_text(str(group.get("kv_store", {}).get("state", "?")))
        table.add_row(name, state_text(str(group["state"])), str(group.get("model", "")), *counts, store)
        for other in group.get("rivals", ()):
            table.add_row("", Text(f"{other} has this name too", style="red"))
        if drafts := _drafts(group.get("speculation", {})):
            table.add_row("", Text("drafts", style="dim"), Text(drafts, style="dim"))
        if adapters := _adapters(group.get("adapters", {})):
            table.add_row("", Text("adapters", style="dim"), Text(adapters, style="dim"))
        if group.get("failure"):
            table.add_row("", Text(str(group["failure"]), style="red"))
        if group.get("degraded"):
            parts = ", ".join(str(part) for part in group["degraded"])
            table.add_row("", Text("degraded", style="yellow"), Text(parts, style="yellow"))
    return table


def _guests(groups: list[dict[str, Any]]) -> list[Text]:
    """A line for each group that a guest computes for: what it is, can and lacks; too long for a table."""
    guests = [(str(group.get("group")), group["guest"]) for group in groups if group.get("guest")]
    return [
        Text(
            f"{name}: guest {guest.get('name', '?')}; can {_listed(guest, 'can')}; "
            f"cannot {_listed(guest, 'lacks')}"
        )
        for name, guest in guests
    ]


def _listed(guest: dict[str, Any], field: str) -> str:
    return ", ".join(map(str, guest.get(field, ()))) or "nothing"


def _adapters(pool: dict[str, Any]) -> str:
    """The adapters in a group's memory, or nothing if there are none."""
    if not pool.get("loaded") and not pool.get("waiting"):
        return ""
    used, most = (round(int(pool.get(name, 0)) / 2**20, 1) for name in ("bytes", "most_bytes"))
    return f"{pool.get('loaded', 0)} loaded, {used:g} of {most:g} MiB; {pool.get('waiting', 0)} requests wait"


def _drafts(speculation: dict[str, Any]) -> str:
    """What came of draft tokens, or nothing if there were none."""
    parts = [_right(speculation, ""), _draft_model(speculation)]
    return "; ".join(text for text in parts if text)


def _right(speculation: dict[str, Any], kind: str) -> str:
    checked = int(speculation.get(f"{kind}draft_tokens", 0))
    right = int(speculation.get(f"{kind}accepted_tokens", 0))
    return f"{right:,} of {checked:,} right ({right / checked:.0%})" if checked else ""


def _draft_model(speculation: dict[str, Any]) -> str:
    """The draft model and what came of its guesses, or why it is away; nothing if there is none."""
    name = speculation.get("model", "")
    if not name:
        return ""
    if failure := speculation.get("model_failure"):
        return f"draft model {name} is away: {failure}"
    if not speculation.get("model_up"):
        return f"draft model {name} is starting"
    return f"draft model {name}: {_right(speculation, 'model_') or 'no guesses so far'}"


def _ranks(groups: list[dict[str, Any]]) -> Table:
    # machines of one NUMA node, which are most, have no such column
    ranks = [rank for group in groups for rank in group.get("ranks", [])]
    bound = ["NUMA node"] if any(rank.get("numa_node", -1) >= 0 for rank in ranks) else []
    table = _table(
        "Ranks", "group", "rank", "state", "pid", "steps", "memory", "loaded in", *bound, "kernels",
        right=(1, 3, 4, 5, 6),
    )  # fmt: skip
    for group in groups:
        for rank in group.get("ranks", []):
            memory, load_s = rank.get("memory_bytes"), rank.get("load_s")
            node = rank.get("numa_node", -1)
            table.add_row(
                str(group.get("group")),
                str(rank.get("rank")),
                state_text(str(rank.get("state"))),
                " on ".join(filter(None, (str(rank.get("pid", "-")), rank.get("host")))),
                str(rank.get("steps")),
                f"{memory / 2**20:.0f} MiB" if memory else "-",
                f"{load_s:.2f} s" if load_s else "-",
                *([str(node) if node >= 0 else "all"] if bound else ()),
                ": ".join(filter(None, (rank.get("kernels"), rank.get("why_plain")))) or "-",
            )
    return table


def _table(title: str, *columns: str, right: tuple[int, ...]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number in right else "left", header_style="dim")
    return table


def state_text(state: str) -> Text:
    """Return a state in its colour."""
    return Text(state, style="green" if state in GOOD else "red" if state in BAD else "yellow")


def story_text(group: SilentGroup) -> Text:
    """Return what is known of a silent group, in red unless it ended cleanly."""
    return Text(group.story, style="" if group.state in ENDED_WELL else "red")


def duration(seconds: float) -> str:
    """Return seconds in the two largest units."""
    whole = int(seconds)
    for unit, size, below, part in (("d", 86_400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part} {below}"
    return f"{whole} s"
