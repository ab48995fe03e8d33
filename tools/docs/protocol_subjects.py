"""The table of subjects in `docs/protocol.md`: which message is sent on each, by whom and to whom."""

from dataclasses import dataclass

from shared import subjects


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
AGENT = "the host's agent"
INDEXERS = "routers of others"

SUBJECTS = [
    SubjectRow(_each(subjects.GENERATE_ALL, "model"), "GenerateRequest", "callers", ROUTERS),
    SubjectRow(
        _each(subjects.AGAIN_ALL, "model"),
        "GenerateRequest, from the third time on",
        "callers",
        "all routers",
    ),
    SubjectRow(_each(subjects.work("_"), "group"), "Work", "routers", LEADER),
    SubjectRow(
        "`Work.counted_by`", "RunningReport, answered by RunningCounted", LEADER, "the router that counts"
    ),
    SubjectRow(
        f"`{subjects.OUTSIDE_RUNNING}`",
        "RunningReport of a router that is gone, answered by RunningCounted",
        LEADER,
        ROUTERS,
    ),
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
    SubjectRow(f"`{subjects.HOST_REPORT}`", "HostReport", "agents of hosts", "all routers"),
    SubjectRow(
        _each(subjects.start_group("_"), "host"), "StartGroup, answered by GroupCommanded", "routers", AGENT
    ),
    SubjectRow(
        _each(subjects.stop_group("_"), "host"), "StopGroup, answered by GroupCommanded", "routers", AGENT
    ),
    SubjectRow(
        _each(subjects.limit_hosted_kv("_"), "host"), "LimitKV, answered by KVLimited", "routers", AGENT
    ),
    SubjectRow(
        f"`{subjects.MANAGE_MODEL}`",
        "ManageModel, answered by ModelManaged of each host that offers the model",
        "gateways, operators",
        "agents of hosts",
    ),
    SubjectRow(
        f"`{subjects.PUT_MODEL}`",
        "PutModel, answered by ModelManaged of one host",
        "gateways, operators",
        "agents of hosts",
    ),
    SubjectRow(f"`{subjects.LEASE}`", "LeaseClaim, answered by LeaseHeld", "routers", KVSTATE),
    SubjectRow(
        f"`{subjects.LEASE_LIMITS}`", "LeaseLimits, answered by LeasedLimits", "gateways, routers", KVSTATE
    ),
    *(
        SubjectRow(
            f"`{subject}`",
            f"{call}, answered by AdapterManaged",
            "gateways, operators, agents of hosts",
            ROUTERS,
        )
        for subject, call in (
            (subjects.LOAD_ADAPTER, "LoadAdapterCall"),
            (subjects.UNLOAD_ADAPTER, "UnloadAdapterCall"),
        )
    ),
    SubjectRow(
        _each(subjects.inspect_adapter("_"), "model"),
        "InspectAdapter, answered by AdapterInspected",
        "routers",
        LEADERS,
    ),
    SubjectRow(f"`{subjects.ADAPTER_PUT}`", "AdapterPut, answered by AdapterStored", "routers", KVSTATE),
    SubjectRow(
        f"`{subjects.ADAPTER_DELETE}`", "AdapterDelete, answered by AdapterStored", "routers", KVSTATE
    ),
    SubjectRow(
        f"`{subjects.ADAPTERS}`",
        "AdapterList, answered by AdapterPage",
        "routers, gateways, operators",
        KVSTATE,
    ),
    SubjectRow(f"`{subjects.ADAPTER_CHANGED}`", "AdapterChanged", "kvstate", "all routers and gateways"),
    SubjectRow(
        f"`{subjects.ACCOUNT_CHANGE}`", "AccountChange, answered by AccountStored", "gateways, `ryz`", KVSTATE
    ),
    SubjectRow(
        f"`{subjects.ACCOUNTS}`",
        "AccountQuery, answered by AccountPage",
        "routers, gateways, `ryz`",
        KVSTATE,
    ),
    SubjectRow(f"`{subjects.AUDIT}`", "AuditQuery, answered by AuditPage", "gateways, `ryz`", KVSTATE),
    SubjectRow(f"`{subjects.ACCOUNT_CHANGED}`", "AccountChanged", "kvstate", "all routers and gateways"),
    SubjectRow(f"`{subjects.USAGE}`", "UsageQuery, answered by UsagePage", "gateways, `ryz`", KVSTATE),
    SubjectRow(f"`{subjects.TENANT_ERASE}`", "TenantErase, answered by TenantErased", "gateways", KVSTATE),
    SubjectRow(_each(subjects.claim("_"), "group"), "ClaimGroup, answered by GroupClaimed", LEADER, LEADER),
    SubjectRow(_each(subjects.drain("_"), "group"), "DrainGroup, answered by Draining", "operators", LEADER),
    SubjectRow(
        _each(subjects.limit_kv("_"), "group"), "LimitKV, answered by KVLimited", "agents of hosts", LEADER
    ),
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
    SubjectRow(_each(subjects.KV_EVENTS_ALL, "group"), "KVEvents", LEADER, INDEXERS),
    SubjectRow(
        f"`{subjects.KV_FOLLOW}`", "KVFollow, answered by KVFollowed of each", INDEXERS, "all leaders"
    ),
    SubjectRow(_each(subjects.kv_replay("_"), "group"), "KVReplay, answered by KVReplayed", INDEXERS, LEADER),
    SubjectRow(
        _each(subjects.kv_snapshot("_"), "group"),
        "KVSnapshotQuery, answered by KVSnapshotPage",
        INDEXERS,
        LEADER,
    ),
    SubjectRow(
        _each(subjects.peer("_"), "group"),
        "SessionGet, answered by SessionFound or TurnState",
        "leaders",
        LEADER,
    ),
    SubjectRow(_each(subjects.warm("_"), "group"), "WarmSession, answered by Warmed", "any user", LEADER),
]
