"""Counts what an idle stack holds: processes, memory, tasks, sockets, files, blocks, places, frames, streams.

Blocks, places, frames and streams must then be zero; the rest must be as before.
"""

import asyncio
import re
import time
from collections import Counter
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import httpx
import psutil

from shared import subjects
from shared.bus import Message
from shared.bus.nats import NatsBus
from shared.codec import decode, encode
from shared.messages import ServiceStatus, StatusQuery
from tests.kits.e2e.stack import Stack

SHM = Path("/dev/shm")
QUIET_S = 40.0
ASK_S = 0.6
# Permitted growth. Redis connection pools grow with concurrency, up to a bound. Memory grows by allocator
# arenas and caches, that of Redis by sessions and KV up to its limit.
MORE_TASKS, MORE_FILES, MORE_SOCKETS = 3, 8, 8
STORES = {"redis", "redis-kv"}
POOLED, MORE_POOLED = {"kvstate", *STORES}, 64
MEMORY_FACTOR, MORE_MEMORY_MIB = 1.3, 24.0


@dataclass(slots=True)
class Stock:
    """Counts by service, its child processes included.

    Attributes:
        processes: Number of processes.
        memory_mib: Resident memory that is not shared (USS).
        files: Open file descriptors.
        sockets: Open sockets.
        segments: Descriptors of unnamed shared memory (memfd).
        segment_names: The same by service, number of the process in its family, and name.
        tasks: asyncio tasks.
        named_segments: Names of this project's files in the machine's shared memory.
        zombies: Number of zombie processes.
    """

    processes: Counter[str] = field(default_factory=Counter)
    memory_mib: dict[str, float] = field(default_factory=dict)
    files: Counter[str] = field(default_factory=Counter)
    sockets: Counter[str] = field(default_factory=Counter)
    segments: Counter[str] = field(default_factory=Counter)
    segment_names: Counter[str] = field(default_factory=Counter)
    tasks: Counter[str] = field(default_factory=Counter)
    named_segments: list[str] = field(default_factory=list)
    zombies: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, for JSON; `asdict` would count the entries of counters."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


def growth(before: Stock, after: Stock) -> list[str]:
    """Descriptions of what grew by more than is permitted."""
    grown = [
        f"{what} of {name}: {getattr(before, what)[name]} before, {count} after"
        for what, more in (
            ("processes", 0),
            ("segments", 0),
            ("tasks", MORE_TASKS),
            ("files", MORE_FILES),
            ("sockets", MORE_SOCKETS),
        )
        for name, count in getattr(after, what).items()
        if count
        > getattr(before, what)[name]
        + (MORE_POOLED if what in {"files", "sockets"} and name in POOLED else more)
    ]
    if any(count > before.segments[name] for name, count in after.segments.items()):
        more, less = after.segment_names - before.segment_names, before.segment_names - after.segment_names
        grown.append(f"segments that are more: {dict(more)}; that are fewer: {dict(less)}")
    grown += [
        f"memory of {name}: {before.memory_mib.get(name, 0):.0f} MiB before, {mib:.0f} after"
        for name, mib in after.memory_mib.items()
        if name not in STORES and mib > before.memory_mib.get(name, 0) * MEMORY_FACTOR + MORE_MEMORY_MIB
    ]
    if set(after.named_segments) - set(before.named_segments):
        grown.append(f"in {SHM}: {before.named_segments} before, {after.named_segments} after")
    if after.zombies > before.zombies:
        grown.append(f"{after.zombies} processes that no parent collected, {before.zombies} before")
    return grown


async def statuses(stack: Stack, bus: NatsBus) -> dict[str, ServiceStatus]:
    """The status of each service by its name in the stack."""
    found: dict[str, ServiceStatus] = {}
    names = {one.pid: one.name for one in stack.state.services}

    async def on_answer(message: Message) -> None:
        status = decode(message.data, ServiceStatus)
        found[names.get(status.pid, status.service)] = status

    inbox = bus.new_inbox()
    subscription = await bus.subscribe(inbox, on_answer)
    await bus.publish(subjects.STATUS, encode(StatusQuery()), reply=inbox)
    await asyncio.sleep(ASK_S)
    await subscription.unsubscribe()
    return found


def busy(reported: dict[str, ServiceStatus], names: set[str], url: str) -> list[str]:
    """Descriptions of what differs from an idle stack."""
    wrong = [f"{name} says nothing" for name in names - reported.keys()]
    for name, status in reported.items():
        detail: dict[str, Any] = status.detail
        if name.startswith("worker-"):
            detail = {"state is": detail["state"] != "ready", **detail}
            used = detail["total_blocks"] - detail["free_blocks"]  # cached blocks are free
            detail |= {"used_blocks": used, "never computed": used < 0}
        wrong += [
            f"{name}: {key} {detail[key]}"
            for key in (
                *("state is", "running", "waiting", "requests", "used_blocks", "retained_bytes"),
                *("sessions_pending", "degraded", "never computed"),
            )
            if detail.get(key)
        ]
    for line in httpx.get(f"{url}/metrics", timeout=5).text.splitlines():
        if re.match(r"ryz_gateway_(parked|open)_streams ", line) and float(line.split()[-1]):
            wrong.append(line)
    return wrong


async def take_when_quiet(stack: Stack, bus: NatsBus) -> Stock:
    """Waits until the stack is idle and counts; fails if it does not become idle."""
    give_up = time.monotonic() + QUIET_S
    names = {one.name for one in stack.state.services} - {"nats", *STORES}
    while True:
        wrong = [f"{one.name} is not ready" for one in stack.state.services if not one.ready]
        if not wrong:
            reported = await statuses(stack, bus)
            try:
                wrong = busy(reported, names, stack.state.url)
            except httpx.TransportError as error:
                wrong = [repr(error)]
        if not wrong:
            return _take(stack, reported)
        assert time.monotonic() < give_up, f"not quiet within {QUIET_S:g} s: {wrong}"
        await asyncio.sleep(0.5)


async def take_when_shrunk(stack: Stack, bus: NatsBus, before: Stock) -> Stock:
    """Counts once nothing has grown: groups let go of a dead rank's segment when they next look for one."""
    give_up = time.monotonic() + QUIET_S
    while True:
        stock = await take_when_quiet(stack, bus)
        if not growth(before, stock) or time.monotonic() > give_up:
            return stock
        await asyncio.sleep(0.5)


def _host_dir(stack: Stack) -> str:
    """Where the stack's groups share KV; empty: they do not."""
    workers = [one.pid for one in stack.state.services if one.name.startswith("worker")]
    return next((psutil.Process(pid).environ().get("RYZ_KV_HOST_DIR", "") for pid in workers), "")


def _take(stack: Stack, reported: dict[str, ServiceStatus]) -> Stock:
    stock = Stock(tasks=Counter({name: int(one.detail["tasks"]) for name, one in reported.items()}))
    others = {path.name for path in SHM.glob("ryz-kv-*")} - {Path(_host_dir(stack)).name}  # of other stacks
    stock.named_segments = sorted({path.name for path in SHM.iterdir() if "ryz" in path.name} - others)
    stock.zombies = sum(
        one.status() == psutil.STATUS_ZOMBIE for one in psutil.Process(stack.process.pid).children()
    )
    own = psutil.Process(stack.process.pid)
    _count(stock, "supervisor", [own])
    for service in stack.state.services:
        process = psutil.Process(service.pid)
        _count(stock, service.name, [process, *process.children(recursive=True)])
    return stock


def _count(stock: Stock, name: str, family: list[psutil.Process]) -> None:
    stock.processes[name] = len(family)
    stock.memory_mib[name] = sum(one.memory_full_info().uss for one in family) / 2**20
    stock.files[name] = sum(one.num_fds() for one in family)
    stock.sockets[name] = sum(len(one.net_connections(kind="all")) for one in family)
    for number, one in enumerate(sorted(family, key=lambda process: process.pid)):
        for link in Path(f"/proc/{one.pid}/fd").iterdir():
            try:
                target = str(link.readlink())
            except FileNotFoundError:  # the descriptor of the listing itself
                continue
            if target.startswith("/memfd:"):
                stock.segments[name] += 1
                stock.segment_names[f"{name} {number} {target}"] += 1
