"""Measures what a tenant that floods a group costs two tenants that behave.

Phases take turns in rounds:

| phase | who asks |
|---|---|
| `calm` | the two that behave |
| `flood` | they and the one that floods |
| `arrival` | the same requests under one tenant's key, so that they are served in the order of arrival |
| `lone` | the one that floods |
| `rivals` | two that flood, one with three times the streams of the other |

A client asks one request after the other. Prompts begin with one of a few texts of their tenant, others in
each phase.
"""

import asyncio
import math
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from benchmarks.lib.measuring import SHARES, BenchError, Progress, milliseconds, percentile
from benchmarks.lib.sse import read_stream
from benchmarks.stack_plans import TenantsPlan
from benchmarks.tenants.fair_bound import WINDOW_S, Rival, Served, bound_report
from benchmarks.tenants.watched_rules import WatchedRules, watch_rules

TENANTS = ("flood", "first", "second")
PHASES = ("calm", "flood", "arrival", "lone", "rivals")
_PREFIXES = 4  # texts with which the prompts of a tenant begin
_RIVALS = 0.25, 0.95  # the part of the phase that is looked at
_PREFIX_SHARE = 0.5  # of a prompt's words


def keys() -> str:
    """Return the keys of the tenants, as `RYZ_API_KEYS` has them."""
    return ",".join(f"{_key(tenant)}:{tenant}" for tenant in TENANTS)


@dataclass(frozen=True, slots=True)
class Client:
    """A client that asks without end.

    Attributes:
        name: For whom it is counted.
        key: The tenant whose key it sends.
        words: Of each prompt.
        pause_s: Between an answer and the next request.
    """

    name: str
    key: str
    words: int
    tokens: int
    pause_s: float = 0.0


@dataclass(slots=True)
class Phase:
    """What was seen in all rounds of a phase, by the name of clients.

    Attributes:
        first_s: Seconds to the first token.
        served: Tokens: those of a prompt that were computed, at its first token, and decoded ones.
        prompt: Tokens of the longest prompt.
        cached: Tokens of prompts that the cache had, and all tokens of prompts.
    """

    first_s: dict[str, list[float]] = field(default_factory=dict)
    served: dict[str, list[Served]] = field(default_factory=dict)
    prompt: dict[str, int] = field(default_factory=dict)
    cached: tuple[int, int] = (0, 0)
    seconds: float = 0.0

    def add(self, name: str, sent: float, parts: list[tuple[float, bytes]]) -> None:
        """Count an answer. Raises `BenchError` if it has no token or no usage."""
        answer = read_stream(parts, sent)
        if answer.usage is None or not answer.times:
            raise BenchError(f"a request of {name} was not answered: {answer.last.decode()[:200]}")
        found, prompt = answer.usage.prompt_tokens_details.cached_tokens, answer.usage.prompt_tokens
        self.first_s.setdefault(name, []).append(answer.times[0] - sent)
        self.cached = self.cached[0] + found, self.cached[1] + prompt
        tokens = self.served.setdefault(name, [])
        tokens.append(Served(answer.times[0], prompt - found, decoded=False))
        tokens += [Served(when, 1) for when in answer.times]
        self.prompt[name] = max(self.prompt.get(name, 0), prompt)


async def measure(plan: TenantsPlan, url: str, model: str, progress: Progress) -> dict[str, Any]:
    """Return a row of each phase, and what they say together.

    Raises:
        BenchError: A request was not answered.
    """
    phases: dict[str, Phase] = {}
    gaps: list[float] = []
    bounds: list[dict[str, Any]] = []
    async with httpx.AsyncClient(
        base_url=url, timeout=600, limits=httpx.Limits(max_connections=None), trust_env=False
    ) as http:
        for number in range(plan.rounds):
            for name in PHASES:
                progress(f"round {number + 1} of {plan.rounds}: {name}")
                phase = phases.setdefault(name, Phase())
                began, served = time.perf_counter(), {one: len(rows) for one, rows in phase.served.items()}
                clients = _clients(plan, name)
                run = _run(plan, http, model, clients, phase, seed=f"{number} {name}")
                rules = WatchedRules()
                if name == "rivals":
                    await watch_rules(http, _key("flood"), rules, run)
                else:
                    await run
                phase.seconds += time.perf_counter() - began
                if name == "rivals":
                    new = {one: rows[served.get(one, 0) :] for one, rows in phase.served.items()}
                    gaps += _gaps(new, began, plan.duration)
                    rivals = _rivals(plan, clients, phase, new, rules)
                    begin, end = began + plan.duration * _RIVALS[0], began + plan.duration * _RIVALS[1]
                    waited = rules.both_waited(rivals, *_RIVALS)
                    bounds.append(bound_report(rivals, rules.of_group(), begin=begin, end=end, waited=waited))
    silent = [name for name, phase in phases.items() if not phase.first_s]
    if silent:
        raise BenchError(f"no request ended in phase {', '.join(silent)}: lengthen them with --duration")
    rows = [_row(name, phase) for name, phase in phases.items()]
    calm, flood, arrival = (phases[name] for name in ("calm", "flood", "arrival"))
    held = [one["holds"] for one in bounds]
    of_rivals = {one: sum(each.tokens for each in rows) for one, rows in phases["rivals"].served.items()}
    return {
        "rows": rows,
        "p50_to_calm": round(_first(flood, 0.5) / _first(calm, 0.5), 2),
        "p99_to_calm": round(_first(flood, 0.99) / _first(calm, 0.99), 2),
        "p99_arrival_to_calm": round(_first(arrival, 0.99) / _first(calm, 0.99), 2),
        "hits_to_arrival": round(_hits(flood) / (_hits(arrival) or 1.0), 3),
        "rivals": of_rivals,
        "window_gap_share_p50": round(percentile(sorted(gaps), 0.5), 3) if gaps else None,
        "window_gap_share_max": round(max(gaps), 3) if gaps else None,
        "bounds": bounds,
        "bound_holds": None if None in held else all(held),
    }


def _clients(plan: TenantsPlan, phase: str) -> list[Client]:
    flood = Client("flood", "flood", plan.long_words, plan.tokens)
    good = [
        Client(name, "flood" if phase == "arrival" else name, plan.words, plan.tokens, plan.pause)
        for name in TENANTS[1:]
        for _ in range(plan.clients)
    ]
    if phase == "calm":
        return good
    if phase == "lone":
        return [flood] * plan.streams
    if phase == "rivals":
        many, few = plan.streams * 3 // 4, plan.streams - plan.streams * 3 // 4
        rival = Client("first", "first", plan.long_words, plan.tokens)
        return [flood] * many + [rival] * few
    return [flood] * plan.streams + good


async def _run(
    plan: TenantsPlan,
    http: httpx.AsyncClient,
    model: str,
    clients: list[Client],
    phase: Phase,
    *,
    seed: str,
) -> None:
    """Let clients ask for the time of a phase; what is under way at its end is ended by its caller."""
    end = time.perf_counter() + plan.duration

    async def ask(number: int, client: Client) -> None:
        rng = random.Random(f"{seed} {number} {client.name}")
        await asyncio.sleep(rng.random() * 0.2)
        while True:
            body = {
                "model": model, "prompt": _prompt(client, seed, rng), "max_tokens": client.tokens,
                "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
            }  # fmt: skip
            sent, parts = time.perf_counter(), list[tuple[float, bytes]]()
            headers = {"Authorization": f"Bearer {_key(client.key)}"}
            async with http.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
                async for part in answer.aiter_raw():
                    parts.append((time.perf_counter(), part))
            phase.add(client.name, sent, parts)
            await asyncio.sleep(client.pause_s * (0.5 + rng.random()))

    tasks = [asyncio.create_task(ask(number, client)) for number, client in enumerate(clients)]
    try:
        done, _ = await asyncio.wait(
            tasks, timeout=end - time.perf_counter(), return_when=asyncio.FIRST_EXCEPTION
        )
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _prompt(client: Client, seed: str, rng: random.Random) -> str:
    shared = random.Random(f"{seed} {client.name} {rng.randrange(_PREFIXES)}")
    count = int(client.words * _PREFIX_SHARE)
    words = [_word(shared) for _ in range(count)] + [_word(rng) for _ in range(client.words - count)]
    return " ".join(words)


def _word(rng: random.Random) -> str:
    return rng.choice(("river", "stone", "house", "green", "water", "light", "paper", "seven", "north"))


def _key(tenant: str) -> str:
    return f"secret-of-{tenant}"


def _first(phase: Phase, share: float) -> float:
    """Return a percentile of seconds to the first token of the tenants that behave."""
    return percentile(sorted(phase.first_s.get("first", []) + phase.first_s.get("second", [])), share)


def _hits(phase: Phase) -> float:
    return phase.cached[0] / max(1, phase.cached[1])


def _rivals(
    plan: TenantsPlan,
    clients: list[Client],
    phase: Phase,
    served: Mapping[str, list[Served]],
    rules: WatchedRules,
) -> dict[str, Rival]:
    """Return the two that flood, as the bound asks for them."""
    return {
        name: Rival(
            weight=rules.weights.get(name, 1.0),
            streams=sum(one.name == name for one in clients),
            prompt=phase.prompt.get(name, 0),
            answer=plan.tokens,
            served=sorted(served.get(name, ())),
        )
        for name in TENANTS[:2]
    }


def _gaps(served: Mapping[str, list[Served]], began: float, duration: float) -> list[float]:
    """Return by how much two tenants differ in each window of the time after the first quarter.

    As a share of what both were served in it.
    """
    found = []
    start = began + duration / 4
    while start + WINDOW_S <= began + duration * 0.95:
        sums = [
            sum([one.tokens for one in rows if start <= one.when < start + WINDOW_S])
            for rows in served.values()
        ]
        if len(sums) == 2 and sum(sums) > 0:
            found.append(abs(sums[0] - sums[1]) / sum(sums))
        start += 1.0
    return found


def _rounded(seconds: float) -> float | None:
    return None if math.isnan(seconds) else milliseconds(seconds, 0)


def _row(name: str, phase: Phase) -> dict[str, Any]:
    served = {one: sum(each.tokens for each in rows) for one, rows in phase.served.items()}
    return {
        "phase": name,
        "requests": sum(len(phase.first_s.get(one, ())) for one in TENANTS[1:]),
        **{f"first_token_{which}_ms": _rounded(_first(phase, share)) for which, share in SHARES.items()},
        "flood_p50_ms": _rounded(percentile(sorted(phase.first_s.get("flood", ())), 0.5)),
        "flood_tokens_per_s": round(served.get("flood", 0) / phase.seconds, 1),
        "tokens_per_s": round(sum(served.values()) / phase.seconds, 1),
        "prefix_hits": round(_hits(phase), 3),
    }
