"""What no action may do, asserted on the simulated groups themselves, not on what `decide` was given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from services.router.domain.models.control_state import Load, Resize, Stop
from tests.kits.router.models.simulated_host import SimulatedGroup, SimulatedHost

if TYPE_CHECKING:
    from tests.kits.router.models.simulation import Simulation


def check_load(host: SimulatedHost, load: Load, run: Simulation) -> None:
    """Asserts that a load is allowed and has a reason."""
    model = run.models[load.model]
    running = host.running(load.model)
    assert host.wishes.get(load.model) != "unload", f"{load} of an unloaded model"
    assert host.retry_at.get(load.model, 0.0) <= run.now, f"{load} before the retry"
    assert len(running) < model.most, f"{load} of too many groups"
    match load.reason:
        case "demand":
            assert run.waiting[load.model], f"{load} without demand"
            assert not run.groups_of(load.model), f"{load} beside another group"
        case "wish":
            assert host.wishes.get(load.model) == "load"
            assert not running
        case "least":
            assert len(running) < model.least
        case "queue":
            assert running or run.groups_of(load.model)
            assert all(group.takes and group.queue for group in run.groups_of(load.model))


def check_resizes(host: SimulatedHost, resizes: list[Resize], run: Simulation) -> None:
    """Asserts that limits stay above what is needed, hold for a while, and that larger ones fit."""
    for resize in resizes:
        group = next(one for one in host.groups if one.name == resize.group)
        kept_s = run.now - group.kv_changed_at
        assert group.takes, f"{resize} of a group that takes nothing"
        assert max(group.model.kv_least, group.kv_needed) <= resize.kv_bytes <= group.model.kv
        if resize.reason == "free":
            assert resize.kv_bytes > group.kv_limit, f"{resize} makes it no larger"
            assert kept_s >= 10, f"{resize} {kept_s} s after the last change"
            assert not any(one.stopping or one.starting for one in host.groups), f"{resize} in a change"
        else:
            assert resize.kv_bytes < group.kv_limit, f"{resize} makes it no smaller"
            assert kept_s >= 2, f"{resize} {kept_s} s after the last change"
            assert resize.reason == "budget" or resize.wanted_by in run.models
    free = host.budget_bytes - host.charged_bytes
    larger = [one for one in resizes if one.reason == "free"]
    groups = {group.name: group for group in host.groups}
    assert sum(one.kv_bytes - groups[one.group].kv_measured for one in larger) <= max(0, free)


def check_stops(host: SimulatedHost, stops: list[Stop], resizes: list[Resize], run: Simulation) -> None:
    """Asserts that all stops of a decision are allowed, each alone and together."""
    groups = {group.name: group for group in host.groups}
    assert len({stop.group for stop in stops}) == len(stops), "a group is stopped twice"
    for stop in stops:
        group = groups[stop.group]
        assert not group.stopping, f"{stop} of a group that stops"
        _check_stop(host, stop, group, run)
    for model in host.models:
        gone = [stop for stop in stops if groups[stop.group].model is model]
        if gone and host.wishes.get(model.name) != "unload":
            assert len(host.running(model.name)) - len(gone) >= model.kept, f"{gone} of groups that stay"
    _check_room(host, stops, resizes, groups, run)
    _check_caches_first(host, stops, groups, run)


def _check_stop(host: SimulatedHost, stop: Stop, group: SimulatedGroup, run: Simulation) -> None:
    wish = host.wishes.get(group.model.name, "")
    if stop.reason == "wish" and wish == "unload":
        return
    if stop.reason == "surplus":
        assert len(host.running(group.model.name)) > group.model.most, f"{stop} of no surplus"
        return
    used = group.served or group.age(run.now) >= 10
    load_s = (group.ready_at or run.now) - group.started_at
    assert group.takes, f"{stop} of a group that starts"
    assert used, f"{stop} before the request that it was loaded for"
    if stop.reason == "rotated":
        assert group.age(run.now) >= max(5.0, 3 * load_s), f"{stop} before its quantum ends"
        assert group.model.name != stop.wanted_by
        least = len(host.running(stop.wanted_by)) < run.models[stop.wanted_by].least
        assert least or host.wishes.get(stop.wanted_by) == "load" or run.waited_s(stop.wanted_by) >= 5.0
        return
    assert not group.busy, f"{stop} of a busy group"
    assert group.model.name not in run.waits_since, f"{stop} of a wanted model"
    assert group.age(run.now) >= max(2.0, load_s), f"{stop} after a short stay"
    if stop.reason == "wish":
        assert wish == "sleep"
    if stop.reason == "idle":
        assert group.model.sleep_s
        assert run.now - group.used_at >= group.model.sleep_s


def _check_caches_first(
    host: SimulatedHost, stops: list[Stop], groups: dict[str, SimulatedGroup], run: Simulation
) -> None:
    """Where one model waits, no group is evicted for it whose memory smaller caches could give as well."""
    evicted = [stop for stop in stops if stop.reason == "evicted" and stop.wanted_by]
    claims = {stop.wanted_by for stop in evicted}.union(run.waits_since)
    claims.update(name for name, wish in host.wishes.items() if wish == "load")
    claims.update(one.name for one in host.models if len(host.running(one.name)) < one.least)
    if not evicted or len(claims) > 1 or len(run.hosts) > 1:
        return  # what others wait for is reserved
    wanted = run.models[evicted[0].wanted_by]
    need = wanted.next_bytes if host.running(wanted.name) else wanted.first_bytes
    for stop in evicted:
        others = {one.group for one in stops} - {stop.group}
        least = {
            group.name: max(group.model.kv_least, group.kv_needed)
            for group in groups.values()
            if group.takes and run.now - group.kv_changed_at >= 2
        }
        assert _room(host, groups, others, least) < need, f"{stop} in place of smaller caches"


def _check_room(
    host: SimulatedHost,
    stops: list[Stop],
    resizes: list[Resize],
    groups: dict[str, SimulatedGroup],
    run: Simulation,
) -> None:
    """What stops for a model makes room for it; of what is drained, nothing could be left out."""
    limits = {one.group: one.kv_bytes for one in resizes}
    for model in {stop.wanted_by for stop in stops if stop.wanted_by}:
        assert _room(host, groups, {stop.group for stop in stops}, limits) >= run.models[model].next_bytes
    rotated = [stop for stop in stops if stop.reason == "rotated"]
    assert len({stop.wanted_by for stop in rotated}) <= 1, "two rotations at a time"
    for stop in rotated:
        wanted = run.models[stop.wanted_by]
        need = wanted.next_bytes if host.running(stop.wanted_by) else wanted.first_bytes
        assert _room(host, groups, {one.group for one in stops}, limits) >= need, f"{stop} makes no room"
        others = {one.group for one in stops} - {stop.group}
        assert _room(host, groups, others, limits) < need, f"{stop} is not needed"


def _room(
    host: SimulatedHost, groups: dict[str, SimulatedGroup], stopped: set[str], limits: Mapping[str, int]
) -> int:
    """What is free when groups that stop, and these, have ended, and caches are as small as these limits."""
    left = [group for group in groups.values() if not group.stopping and group.name not in stopped]
    names = {group.model.name: group.model for group in left}
    saved = sum(
        group.model.kv - min(group.kv_limit, limits.get(group.name, group.kv_limit)) for group in left
    )
    return (
        host.budget_bytes
        + saved
        - sum(model.bytes_of(sum(group.model is model for group in left)) for model in names.values())
    )
