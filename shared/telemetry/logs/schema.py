"""The fields of our log lines: names, types, meanings. One schema for all services and ranks.

`tests/unit/shared/telemetry/test_log_schema.py` holds every call of a logger to it, the tests of whole
stacks every line that was written. docs/logs.md is made of it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BURST = 20  # lines of one kind in ten seconds that are written, unless `RYZ_LOG_BURST` says otherwise
LEVELS = ("debug", "info", "warning", "error", "critical")
REQUIRED = ("timestamp", "level", "event", "service", "instance")
MAX_EVENT = 200  # characters; what varies stands in other fields
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_TRACE = re.compile(r"[0-9a-f]{32}")

TEXT, WHOLE, NUMBER, TRUTH, TEXTS, STACKS = (
    "text",
    "whole number",
    "number",
    "true or false",
    "texts",
    "stacks",
)
_TYPES: dict[str, tuple[type, ...]] = {
    TEXT: (str,),
    WHOLE: (int,),
    NUMBER: (int, float),
    TRUTH: (bool,),
    TEXTS: (list,),
    STACKS: (list,),
}


@dataclass(frozen=True, slots=True)
class LogField:
    """One field."""

    kind: str
    meaning: str

    def holds(self, value: object) -> bool:
        """Returns whether the value has the field's type."""
        if isinstance(value, bool):
            return self.kind == TRUTH
        if not isinstance(value, _TYPES[self.kind]):
            return False
        if isinstance(value, list):
            return all(isinstance(one, dict if self.kind == STACKS else str) for one in value)
        return True


def _fields(kind: str, /, **meanings: str) -> dict[str, LogField]:
    return {name: LogField(kind, meaning) for name, meaning in meanings.items()}


ALL_LINES = {
    **_fields(
        TEXT,
        timestamp="ISO 8601, UTC",
        level="`debug`, `info`, `warning`, `error` or `critical`",
        event="what happened: a fixed text; what varies is in other fields",
        service="`gateway`, `router`, `worker` or `kvstate`",
        instance="the process, as in status, heartbeats and metrics; of ranks, their leader's",
    ),
    **_fields(TRUTH, cut="the line was longer than 16,000 bytes, and parts are left out"),
}
OF_REQUESTS = {
    **_fields(
        TEXT,
        request_id="the request; begins with the caller's `X-Request-Id`",
        trace_id="its trace, where it has one",
        shown_id="the request's id as its caller sees it",
        session_id="the session",
        response_id="the response of the Responses API",
        batch_id="the batch",
        tenant="the tenant",
        key_id="the API key, by the part of it that may be shown",
        model="the model asked for",
        adapter="the name of an adapter",
        fingerprint="of an adapter's content",
        group="the group that is meant",
        lost_group="the group that had the request before",
        last_group="the group that served the session last",
        preferred_group="the session's home",
        reason="why, as a word of a closed set",
        kv="where the KV of the prompt came from",
        route="the path of the API",
        method="of HTTP, or of a gRPC call",
        tool="the name of a tool",
    ),
    **_fields(
        WHOLE,
        attempt="how often the request was given to a group after a loss",
        from_seq="the frame after which it continues",
        status="of HTTP",
        prompt_tokens="tokens of the prompt",
        completion_tokens="tokens of the answer",
        session_tokens="tokens of the session",
        line="of a batch's input",
        deaths="engines that died while they computed the request",
    ),
    **_fields(
        NUMBER,
        seconds="from the first byte of the request to the last of the answer",
        waited_s="how long something waited",
        cost_s="the expected time of the turn in the group that was chosen",
        move_s="the part of it that moves or computes the session's KV",
        stay_cost_s="the expected time where the session was",
        grace_s="how long a stream waits for its client",
    ),
    **_fields(TEXTS, fields="names of fields of a body", left_out="parts of a tool's schema"),
}
OF_PROCESSES = {
    **_fields(
        TEXT,
        action="of the controller: `load`, `stop` or `resize`",
        lease="what is leased",
        host_instance="the agent of a host; changes with each start",
        wanted_by="the model that gets the memory",
        role="`rank`, `nursery` (ranks are forked from it), `join` or `heartbeats`; leaders have none",
        host="an address or a host's name",
        group_instance="the instance of the group that is meant",
        ignored_instance="the instance that gets no requests",
        other="another instance of the same group's name",
        other_host="its host",
        holder="the instance that has the name now",
        state="the state now",
        before="the state before",
        change="what changed",
        task="the name of a task in the process",
        kind="the kind of a failure",
        engine="the kind of engine, if it is no ordinary one",
        guest="the engine of others behind a group",
        kernels="what a rank computes with",
        why_plain="why it has no compiled kernels",
        signal="the signal that ended a process",
        path="a file",
        leader="the address of a leader",
        endpoint="where a guest sends its KV events again",
        output="a line that a process of vLLM wrote",
    ),
    **_fields(
        WHOLE,
        pid="the process",
        rank="the rank",
        port="the port",
        exit_code="of the process",
        described_ms="how long the event loop has made no description of the group",
        starved_ms="how long of it a thread of the leader waited for a core",
        cpu_ms="how long of it the leader's threads had cores",
        steps="steps that a rank has run",
        memory_bytes="resident memory",
        loaded_bytes="bytes of weights",
        kv_cache_bytes="bytes of the KV cache",
        numa_node="the NUMA node that a rank keeps to; -1: any",
        available_bytes="memory that the machine or container has available",
        open_files="the limit of open files",
        connections="connections that fit into it",
        configured="what the settings allow",
        keys="how many keys",
        blocks="how many KV blocks",
        epoch="of a lease; grows with each holder",
        budget_bytes="memory that all groups of a host may take",
        busy="requests that a group had",
        wanted="requests that wait for its model",
    ),
    **_fields(
        NUMBER,
        after_s="since the start of the process",
        idle_s="for how long a group had no request",
        at_most_s="the limit of a drain",
        load_s="how long a rank loaded",
        silent_s="how long a group was silent by its own fault",
        limit_s="how long it might have been",
        restart_in_s="when ranks start again",
    ),
    **_fields(
        TRUTH,
        compiled="whether modules were compiled by `make compile`",
        tls="whether HTTP is encrypted",
        own="whether this process has the lease",
        gives_up="whether the group gives up for a while",
    ),
}
OF_TROUBLE = {
    **_fields(
        TEXT,
        error="what another part said",
        problem="what prevented the answer",
        why="the cause, in a sentence",
        cause="the cause of a change; of a loss what heartbeats said: `ended`, `frozen`, `hung`",
        remedy="what to do",
        setting="a setting with its value",
        what="what was removed: a field of a tenant's record, such as `response_days`",
        found_by="who noticed a loss",
        subject="a subject of the broker",
        reply="the subject for the answer",
        user="a user of the broker",
        store="which Redis",
        policy="a setting of Redis",
        call="a call to the KV state service",
        of="the event of the lines that were left out",
        of_level="their level",
        exception_type="the type of their exception",
    ),
    **_fields(
        WHOLE,
        times="how often so far",
        count="how many",
        frames="parts of a message of a guest",
        number="how many",
        more="how many like this were left out since the last line",
        streams="how many streams",
        requests="how many requests",
        handlers="how many handlers",
        pending="messages that wait",
        dropped="messages that were dropped so far",
        throttled="how often the broker dropped messages",
        tenants="how many tenants",
        pins="how many pins",
        refused="commands of its log that Redis refused when it started",
        responses="stored responses",
        sessions="stored sessions",
        tombstones="deletions that are remembered",
        known="how many are known",
        ended="how many were ended",
        version="of the register of adapters",
        adapter_rank="the largest rank of an adapter",
        missing="how many are missing",
        seq="the number of a heartbeat",
        limit_bytes="the limit",
        limit_messages="the limit",
        broken_total="generations that failed by the group's fault",
        ended_total="generations that ended",
    ),
    **_fields(
        TEXTS,
        models="the models that a host offers",
    ),
    **_fields(
        TEXTS,
        places="lines of code that hold memory, or whose memory has grown",
        lacks="what a guest cannot do",
    ),
    **_fields(TEXTS, stack="frames of the threads of a process that a signal ended"),
    **_fields(STACKS, exception="type, text and frames of an exception and its causes, without variables"),
}
PARTS = {
    "Every line": ALL_LINES,
    "Of a request": OF_REQUESTS,
    "Of a process": OF_PROCESSES,
    "Of trouble": OF_TROUBLE,
}
FIELDS: dict[str, LogField] = {name: field for part in PARTS.values() for name, field in part.items()}
SERVICES = frozenset({"gateway", "router", "worker", "kvstate"})


def problems_of(line: Mapping[str, Any]) -> list[str]:
    """Returns what is wrong with a line, one sentence each; an empty list: nothing."""
    found = [f"there is no field {name!r}" for name in REQUIRED if not line.get(name)]
    for name, value in line.items():
        field = FIELDS.get(name)
        if field is None:
            found.append(f"the field {name!r} is not in the schema")
        elif not field.holds(value):
            found.append(f"the field {name!r} is no {field.kind}, but {type(value).__name__}")
    if found:
        return found
    if not _TIME.fullmatch(line["timestamp"]):
        found.append(f"the timestamp {line['timestamp']!r} is not in ISO 8601 and UTC")
    if line["level"] not in LEVELS:
        found.append(f"there is no level {line['level']!r}")
    if line["service"] not in SERVICES:
        found.append(f"there is no service {line['service']!r}")
    if len(line["event"]) > MAX_EVENT:
        found.append("the event is too long: what varies belongs into other fields")
    if "trace_id" in line and not _TRACE.fullmatch(line["trace_id"]):
        found.append(f"{line['trace_id']!r} is no id of a trace")
    return found
