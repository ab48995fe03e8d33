"""The part of `ryz status` that a router fills: its view of the fleet."""

from collections.abc import Iterable
from typing import Any

from msgspec import to_builtins

from services.router.context import RouterContext
from services.router.domain.groups.group import Group
from services.router.models.lease import ControllerLease
from shared.messages import ModelState


def describe(context: RouterContext, lease: ControllerLease) -> dict[str, Any]:
    """Plain values only. Times are in seconds; `requests` is the estimate as of now."""
    now = context.clock()
    states = context.state.models.states(context.fleet, now)
    return {
        "policy": context.policy.name,
        "routers": context.fleet.routers.count(now),
        "pins": len(context.state.pins),
        "adapters": {
            "known": len(context.state.adapters),
            "version": context.state.adapters.version,
            "current": context.state.adapters.is_current,
        },
        "sessions": len(context.state.sessions),
        "groups": [_group(context, group, now) for group in context.fleet.groups()],
        "models": _models(states),
        "models_waiting": {state.card.name: state.waiting for state in states if state.waiting},
        "models_lease": {"holder": lease.holder, "held": lease.is_held(now), "epoch": lease.epoch},
    }


def _models(states: Iterable[ModelState]) -> dict[str, list[str]]:
    """The models that hosts offer, by phase."""
    phases: dict[str, list[str]] = {}
    for state in states:
        phases.setdefault(state.phase, []).append(state.card.name)
    return phases


def _group(context: RouterContext, group: Group, now: float) -> dict[str, Any]:
    view, heartbeat = group.view(now), group.heartbeat
    return {
        "group": group.name,
        "state": str(group.standing(now)),
        "lost": group.lost,
        "lost_cause": group.lost_cause,
        "breaker": str(group.breaker.state(now)),
        "instance_id": heartbeat.instance_id,
        "rival": context.fleet.rivals.of(group.name, now),
        "model": heartbeat.model.name,
        "tensor_parallel": heartbeat.tensor_parallel,
        "weight": heartbeat.weight,
        "heartbeat_age_s": round(now - group.heard_at, 3),
        "heartbeat_gap_s": round(group.gap_s, 3),
        "vitals": to_builtins(heartbeat.vitals),
        "adapters": len(heartbeat.adapters),
        "kv": to_builtins(heartbeat.kv),
        "load": to_builtins(heartbeat.load),
        "requests": {"running": view.running, "waiting": view.waiting, "capacity": view.capacity},
        "wait_s": round(view.wait_s, 3),
        "requests_per_s": round(group.requests_per_s, 1),
        "sent_total": group.sent_total,
        "ended_total": heartbeat.ended_total,
        "broken_total": heartbeat.broken_total,
    }
