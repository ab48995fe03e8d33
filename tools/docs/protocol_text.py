"""The parts of `docs/protocol.md` that types do not have: who sends what where, and the rules of frames."""

from dataclasses import dataclass

from shared import subjects
from shared.bus.accounts import INBOX
from shared.messages.base import MAX_DEPTH, SMALL


@dataclass(frozen=True, slots=True)
class SubjectRow:
    """One line of the table of subjects."""

    subject: str
    message: str
    sender: str
    listener: str


def _each(pattern: str, name: str) -> str:
    """The subject with a placeholder for its last token."""
    return f"`{pattern.rpartition('.')[0]}.<{name}>`"


ROUTERS = f"routers, queue group `{subjects.ROUTER_QUEUE}`"
KVSTATE = f"kvstate, queue group `{subjects.KVSTATE_QUEUE}`"
GATEWAYS = f"gateways, queue group `{subjects.GATEWAY_QUEUE}`"
LEADERS = f"leaders of the model, queue group `{subjects.TOKENIZE_QUEUE}`"
REPLY_TO = "the request's `reply_to`"
LEADER = "the group's leader"

SUBJECTS = [
    SubjectRow(_each(subjects.GENERATE_ALL, "model"), "GenerateRequest", "callers", ROUTERS),
    SubjectRow(
        _each(subjects.AGAIN_ALL, "model"),
        "GenerateRequest, from the third time on",
        "callers",
        "all routers",
    ),
    SubjectRow(_each(subjects.work("_"), "group"), "Work", "routers", LEADER),
    SubjectRow(REPLY_TO, "FrameBatch", "the leader; a router that refuses", "the caller"),
    SubjectRow(_each(subjects.resend("_"), "group"), "Resend, answered by ResendReply", "callers", LEADER),
    SubjectRow(_each(subjects.cancel("_"), "group"), "Cancel", "callers", LEADER),
    SubjectRow(_each(subjects.delivered("_"), "group"), "Delivered", "gateways", LEADER),
    SubjectRow(f"`{subjects.CANCEL_ALL}`", "Cancel, while no group is known", "callers", "all leaders"),
    SubjectRow(f"`{subjects.ATTACH}`", "Attach, answered by Attached", "callers", "all leaders"),
    SubjectRow(
        f"`{subjects.TENANTS}<tenant>.<user>.generate.<model>`; there, too, `again.<model>`, "
        "`complete.<model>`, `resend.<group>`, `cancel.<group>`, `cancel`, `tokenize.<model>`, "
        "`detokenize.<model>`, `models`, `files.*`, `batches.*`",
        "as above",
        "services outside",
        "as above",
    ),
    SubjectRow(
        _each(subjects.complete_all(), "model"),
        "[JSON in, JSON out](client.md#one-request-one-reply)",
        "callers",
        GATEWAYS,
    ),
    SubjectRow(
        _each(subjects.tokenize("_"), "model"), "TokenizeQuery, answered by Tokenized", "callers", LEADERS
    ),
    SubjectRow(
        _each(subjects.detokenize("_"), "model"),
        "DetokenizeQuery, answered by Detokenized",
        "callers",
        LEADERS,
    ),
    *(
        SubjectRow(f"`{subjects.batch_call(name)}`", message, "callers", GATEWAYS)
        for name, message in (
            ("files.put", "FilePut, answered by FilesFound"),
            ("files.join", "FileJoin, answered by FilesFound"),
            ("files.read", "FileRead, answered by FileBytes"),
            ("files.query", "FileQuery, answered by FilesFound"),
            ("batches.create", "BatchCreate, answered by BatchesFound"),
            ("batches.query", "BatchQuery, answered by BatchesFound"),
        )
    ),
    SubjectRow(
        _each(subjects.HEARTBEAT_ALL, "group"), "Heartbeat", "leaders", "all routers; gateways with batches"
    ),
    SubjectRow(f"`{subjects.GROUP_DOWN}`", "GroupDown", "routers", "callers, all routers"),
    SubjectRow(f"`{subjects.ROUTER_ALIVE}`", "RouterAlive", "routers", "all routers"),
    SubjectRow(_each(subjects.claim("_"), "group"), "ClaimGroup, answered by GroupClaimed", LEADER, LEADER),
    SubjectRow(_each(subjects.drain("_"), "group"), "DrainGroup, answered by Draining", "operators", LEADER),
    SubjectRow(
        f"`{subjects.BROKER_DISCONNECT}`", "JSON of the broker: a client is gone", "the broker", "all routers"
    ),
    SubjectRow(f"`{subjects.MODELS}`", "ListModels, answered by ModelList", "any user", ROUTERS),
    SubjectRow(
        f"`{subjects.STATUS}`", "StatusQuery, answered by ServiceStatus of each", "any user", "every service"
    ),
    SubjectRow(
        f"`{subjects.EXPLAIN}`",
        "ExplainQuery, answered by Explanation of each that knows the request",
        "operators",
        "every service",
    ),
    SubjectRow(
        f"`{subjects.PROFILE}`",
        "ProfileQuery, answered by ProfileAnswer and then ProfileParts",
        "operators",
        "all leaders",
    ),
    SubjectRow(
        "`$SRV.PING`, `$SRV.INFO`, `$SRV.STATS`; `.<service>`, `.<instance>` may follow",
        "JSON as in NATS's ADR-32 ([client.md](client.md#listing-models-and-services))",
        "operators",
        "every service",
    ),
    SubjectRow(
        f"`{subjects.SESSION_GET}`",
        "SessionGet, answered by SessionFound",
        "leaders, other services",
        KVSTATE,
    ),
    SubjectRow(
        f"`{subjects.SESSION_COMMIT}`", "SessionCommit, answered by SessionCommitted", "leaders", KVSTATE
    ),
    SubjectRow(
        f"`{subjects.SESSION_LIST}`", "SessionList, answered by SessionPage", "other services", KVSTATE
    ),
    SubjectRow(
        f"`{subjects.SESSION_DELETE}`", "SessionDelete, answered by SessionDeleted", "other services", KVSTATE
    ),
    SubjectRow(
        f"`{subjects.SESSION_DESCRIBE}`",
        "SessionDescribe, answered by SessionDescribed",
        "other services",
        KVSTATE,
    ),
    SubjectRow(
        f"`{subjects.SESSION_PIN}`", "SessionPin, answered by SessionDescribed", "other services", KVSTATE
    ),
    SubjectRow(f"`{subjects.PINS}`", "PinList, answered by PinPage", "routers", KVSTATE),
    SubjectRow(f"`{subjects.RESPONSE_PUT}`", "ResponsePut, answered by ResponseStored", "gateways", KVSTATE),
    SubjectRow(f"`{subjects.RESPONSE_GET}`", "ResponseGet, answered by ResponseFound", "gateways", KVSTATE),
    SubjectRow(
        f"`{subjects.RESPONSE_CHAIN}`", "ResponseChainQuery, answered by ResponseChain", "gateways", KVSTATE
    ),
    SubjectRow(
        f"`{subjects.RESPONSE_LEASE}`", "ResponseLease, answered by ResponseLeased", "gateways", KVSTATE
    ),
    SubjectRow(
        f"`{subjects.RESPONSE_CLAIM}`", "ResponseClaim, answered by ResponsesClaimed", "gateways", KVSTATE
    ),
    SubjectRow(
        f"`{subjects.RESPONSE_DELETE}`", "ResponseDelete, answered by ResponseDeleted", "gateways", KVSTATE
    ),
    SubjectRow(f"`{subjects.BLOCKS_FIND}`", "BlocksFind, answered by BlocksFound", "leaders", KVSTATE),
    SubjectRow(
        f"`{subjects.BLOCKS_COMMIT}`", "BlocksCommit, answered by BlocksCommitted", "leaders", KVSTATE
    ),
    SubjectRow(
        f"`{subjects.SESSION_TURNS}`",
        "SessionTurns",
        "leaders",
        "all routers; gateways with an open live view",
    ),
    SubjectRow(f"`{subjects.SESSION_PINNED}`", "Pinned", "kvstate", "all routers"),
    SubjectRow(f"`{subjects.SESSION_GONE}`", "SessionGone", "kvstate", "all leaders and routers"),
    SubjectRow(
        f"`{subjects.SESSION_ROUTE}`", "SessionRouteQuery, answered by SessionRoute", "any user", ROUTERS
    ),
    SubjectRow(
        f"`{subjects.KV_HOLDERS}`", "HoldersQuery, answered by Holding of each", "any user", "all leaders"
    ),
    SubjectRow(_each(subjects.peer("_"), "group"), "SessionGet, answered by SessionFound", "leaders", LEADER),
    SubjectRow(_each(subjects.warm("_"), "group"), "WarmSession, answered by Warmed", "any user", LEADER),
]

INTRODUCTION = f"""
# Protocol

<!-- Generated by `python -m tools.docs.protocol` from shared/messages; do not edit. -->

How to talk to the services over NATS without any code of ours: every subject, message and rule. Python
services use `shared.client.InferenceClient` (`examples/publish_with_client.py`); `examples/plain_nats.py`
needs only nats-py and msgpack.

A message is one MessagePack map with string keys. A field that has its default may be left out, and our
services leave it out, in frames too (the first `seq`, 0, is absent); unknown fields are ignored. Sizes are
bounded by the broker's `max_payload` (1 MiB by default), nesting by
{MAX_DEPTH} levels; `Cancel`, `Resend`, `Attach`, and what names a session and no more, by {SMALL:,} bytes.
Messages change by addition only: what would break a reader gets a new version in the subject
(`{subjects.VERSION}`).

The broker's address is the one that `RYZ_NATS_URL` gives the services. `ryz up` takes a free port unless
`--nats-port` says otherwise; it prints the address with a user and a password for services outside.

Where the broker has [accounts](security.md), each user reads inboxes that begin with `{INBOX}.<user>.` and no
others; nats-py wants `inbox_prefix` for that. The user of a service outside may publish requests,
cancel them, ask for lost frames, list models and have text tokenized, all on subjects that
begin with `{subjects.TENANTS}<tenant>.<user>.`; those of the
user `outside` begin with `{subjects.TENANTS}outside.outside.`. It leaves the `tenant` of messages out, since
the subject's counts; request ids are its tenant's own; `reply_to` and the NATS reply subject are in its own
inbox. The router bounds its `priority`, its `kv` and `note` are ignored, and a later
`attempt` gives it no precedence. It may not read `GroupDown`, so it notices a lost group by its silence.

## Subjects

In a subject, bytes of a model's or group's name outside `[A-Za-z0-9_-]` are written as `=XX` (hex): the model
`acme/llama-3.1` is asked at `{subjects.generate("acme/llama-3.1")}`.
"""

RULES = f"""
`sampling.seed` is 0 unless the caller sets it, and equal requests with equal seeds get equal answers. Set it
to a random number for each request, unless an answer is to be repeated. Gateways do so for callers without a
seed.

Headers of a `GenerateRequest`, all optional:

| header | meaning |
|---|---|
| `{subjects.HEADER_TIMEOUT}` | Milliseconds that the caller will still wait; each hop subtracts its own. |
| `traceparent`, `tracestate` | W3C trace context; passed on to every message that the request leads to. |

Calls to the KV state service that no turn waits for name their tenant in the header
`{subjects.HEADER_TENANT}`: lists, changes, and `SessionGet` and `SessionCommit` on behalf of people or
programs. They are handled in rotation of tenants, and a tenant with too many waiting gets `rate_limited`.
Without it, lists and changes of all such callers wait as those of one tenant, and the other two are handled
as they come.

## A generation

1. Subscribe to a subject of your own (an inbox). Publish a `GenerateRequest` with that subject in `reply_to`,
   and a NATS reply subject of your own too: if no router listens, the broker answers there at once with an
   empty message whose header `Status` is 503.
2. The group's leader sends `FrameBatch` messages to `reply_to`. A batch may hold frames of several requests,
   if you use one `reply_to` for all of them: look at `request_id`.
3. Frames of a request are numbered by `seq` from 0 without a gap. Number 0 is `Accepted`; the last one is
   `Done` or `Failed`, exactly once. A router that refuses a request sends `Failed` with number 0.
4. Nothing came within 200 ms: publish the same bytes again, waiting twice as long each time, five times in
   all; then no leader will take it. A leader that has the request sends what it has instead of starting it
   twice. Publish the third time and later on `ryz.v1.again.<model>`, which all routers read: the one router
   that got the others may be frozen. If no router listens, or a router refuses the request with
   `unavailable`, before any group has begun it: wait and publish it again with the same `attempt`, for as
   long as your caller can wait.
5. A number is missing: put what came after it aside, and send `Resend` as a NATS request to the group named
   in `Accepted` (or in the batch). An answer with a field `error` is an `ErrorReply`; `ResendReply` has the
   frames from that number on; a long answer comes in parts: ask again from where it ended. Leaders keep
   frames for some seconds after the end.
6. The stream is silent for a second: send `Resend` with the next number. `known: false` or no responders
   means that the group is lost. `GroupDown` says so much sooner, of the instance named in `Accepted`. A
   request that no group has accepted yet may have gone there: publish it again at once.
7. The group is lost, or the request ended with `Failed` and `resumable`: publish the request again with the
   next `attempt` and, if frames had come, with `resume`: the tokens of each choice and the next number,
   and how much of the prompt's text and log probabilities has come. Put the values of `Accepted.sampling`
   into `sampling`: the next group may have other defaults.
   Another group goes on from there; nothing comes twice. Where no group takes it now, wait and use the next
   attempt.
8. A number that came already is a copy: ignore it. Ignore frames whose `attempt` is not the request's, and
   frames of a second group; tell that one with `Cancel`, which names the attempt that is to end. A group with
   another `instance_id` is a second group, whatever its name: `Resend` and `Cancel` name the instance that is
   meant, and others ignore them.
9. To go on with a request that another caller has published, publish `Attach` as a NATS request: its leader
   answers with `Attached`, sends all that follows to you, and has what came before for `Resend`.
10. No longer interested: `Cancel` to the group, or to all leaders while no group is known. A cancelled
    request ends with `Failed`, code `cancelled`; no caller needs to wait for it.

[Sequence diagrams](protocol-diagrams.md) show the usual course, and what happens after losses.
`examples/conformance.py` checks a client: it plays router and leaders with faults, and names the rule that
was broken.

Text in `Delta` is complete UTF-8. Token ids are unsigned 32-bit little-endian integers, packed. Calls that
are answered on the NATS reply subject are answered with an `ErrorReply` in place of the expected message if
they fail.
"""

EXAMPLE = """
## Worked example

A request, as JSON for reading (bytes in hex) and as the bytes on the wire:

```json
{request_json}
```

```
{request}
```

Its whole answer in one batch:

```json
{batch_json}
```

```
{batch}
```
"""

ERRORS = """
## Error codes

`Failed.code` and `ErrorReply.error` are one of these; `message` is for people, `data` for programs
(`retry_after_s`, `param`, `reason`). The gateway answers with the HTTP status and OpenAI's error type.
"""
