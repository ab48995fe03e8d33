"""The users of the broker, and the subjects that each may publish and read.

There is one user for each kind of service and one for callers outside. The table is the source of
`deploy/nats.conf`, of the broker that `ryz up` starts and of the table in `docs/security.md`. The broker
refuses all other subjects.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from shared import streams, subjects
from shared.bus.jetstream.subjects import stream_subjects
from shared.subjects import ANY_CALLER, OutsideService

INBOX = "_INBOX"
ACCOUNT = "RYZ"
SYSTEM_ACCOUNT = "SYS"
DISCONNECT_EVENT = "$SYS.ACCOUNT.{account}.DISCONNECT"  # where the broker reports clients that are gone


@dataclass(frozen=True, slots=True)
class BusAccount:
    """One user of the broker.

    Attributes:
        who: Its description for people.
        publish: Subjects that it may publish to.
        read: Subjects that it may read, some only as a member of the queue group named after the subject.
        answers: Whether it may publish to the reply subjects of messages it has read, for the longest
            time limit of a request.
    """

    user: str
    who: str
    publish: tuple[str, ...]
    read: tuple[str, ...] = ()
    answers: bool = False

    @property
    def inbox(self) -> str:
        """The pattern of this user's inboxes, which no other user may read."""
        return f"{inbox_prefix(self.user)}.>"

    @property
    def password_variable(self) -> str:
        """The environment variable of the broker that has the user's password."""
        return f"RYZ_NATS_{self.user.upper()}_PASSWORD"


def _all(one: str) -> str:
    """Returns the pattern for the subjects of all groups, from the subject of one."""
    return f"{one.rpartition('.')[0]}.*"


def _member(subject: str, queue: str) -> str:
    return f"{subject} {queue}"


WORK, CANCEL, RESEND = _all(subjects.work("_")), _all(subjects.cancel("_")), _all(subjects.resend("_"))
KV_REPLAY, KV_SNAPSHOT = _all(subjects.kv_replay("_")), _all(subjects.kv_snapshot("_"))
PEER, WARM, DRAIN = _all(subjects.peer("_")), _all(subjects.warm("_")), _all(subjects.drain("_"))
CLAIM, DELIVERED = _all(subjects.claim("_")), _all(subjects.delivered("_"))
START_GROUP, STOP_GROUP = _all(subjects.start_group("_")), _all(subjects.stop_group("_"))
LIMIT_HOSTED_KV, LIMIT_KV = _all(subjects.limit_hosted_kv("_")), _all(subjects.limit_kv("_"))
INSPECT_ADAPTER = _all(subjects.inspect_adapter("_"))
MANAGE_ADAPTERS = (subjects.LOAD_ADAPTER, subjects.UNLOAD_ADAPTER)
TOKENIZE = (_all(subjects.tokenize("_")), _all(subjects.detokenize("_")))
TOKENIZE_OUTSIDE = (
    _all(subjects.tokenize("_", ANY_CALLER)),
    _all(subjects.detokenize("_", ANY_CALLER)),
)
ANY_INBOX = f"{INBOX}.>"
RESPONSE_CALLS = (
    subjects.RESPONSE_PUT, subjects.RESPONSE_GET, subjects.RESPONSE_CHAIN, subjects.RESPONSE_LEASE,
    subjects.RESPONSE_CLAIM, subjects.RESPONSE_DELETE,
)  # fmt: skip
BATCHES = (
    streams.batch_record("*", "*"), streams.batch_line("*", "*"), streams.batch_result("*", "*"),
    streams.file_pieces("*"), streams.file_known("*"), *stream_subjects(streams.BATCHES_STREAM),
    *stream_subjects(streams.LINES_STREAM, work=True), *stream_subjects(streams.RESULTS_STREAM),
    *stream_subjects(streams.FILES_STREAM),
)  # fmt: skip
ACCOUNT_CALLS = (subjects.ACCOUNT_CHANGE, subjects.ACCOUNTS, subjects.AUDIT, subjects.USAGE)
LEDGERS = (
    streams.account_record("*"), streams.audit_entry(), streams.usage("*"),
    streams.usage_sum("*", "*", "*"), *stream_subjects(streams.ACCOUNTS_STREAM),
    *stream_subjects(streams.AUDIT_STREAM), *stream_subjects(streams.USAGE_STREAM),
    *stream_subjects(streams.USAGE_SUMS_STREAM),
)  # fmt: skip

_GATEWAY = BusAccount(
    "gateway",
    "gateways",
    publish=(
        subjects.GENERATE_ALL, subjects.AGAIN_ALL, RESEND, CANCEL, subjects.CANCEL_ALL, subjects.ATTACH,
        subjects.MODELS,
        subjects.SESSION_GET, subjects.SESSION_COMMIT, subjects.SESSION_LIST, subjects.SESSION_DELETE,
        subjects.SESSION_DESCRIBE, subjects.SESSION_PIN, subjects.SESSION_ROUTE, subjects.KV_HOLDERS, WARM,
        DELIVERED, subjects.STATUS, subjects.MANAGE_MODEL, subjects.PUT_MODEL, *MANAGE_ADAPTERS,
        subjects.ADAPTERS, *TOKENIZE, *RESPONSE_CALLS, *BATCHES, *ACCOUNT_CALLS, subjects.LEASE_LIMITS,
        subjects.TENANT_ERASE, streams.usage("*"),
    ),
    read=(
        subjects.GROUP_DOWN, subjects.STATUS, subjects.EXPLAIN, subjects.SRV_ALL, subjects.HEARTBEAT_ALL,
        *(_member(subject, subjects.GATEWAY_QUEUE) for subject in subjects.batch_calls()),
        *(_member(subject, subjects.GATEWAY_QUEUE) for subject in subjects.batch_calls(ANY_CALLER)),
        _member(subjects.complete_all(), subjects.GATEWAY_QUEUE),
        _member(subjects.complete_all(ANY_CALLER), subjects.GATEWAY_QUEUE),
        subjects.SESSION_TURNS, subjects.ADAPTER_CHANGED, subjects.ACCOUNT_CHANGED,
    ),
    answers=True,
)  # fmt: skip
_ROUTER = BusAccount(
    "router",
    "routers",
    publish=(
        WORK, subjects.GROUP_DOWN, subjects.ROUTER_ALIVE, subjects.SESSION_GET, subjects.PINS, ANY_INBOX,
        subjects.LEASE, START_GROUP, STOP_GROUP, LIMIT_HOSTED_KV,
        subjects.ADAPTER_PUT, subjects.ADAPTER_DELETE, subjects.ADAPTERS, INSPECT_ADAPTER,
        subjects.ACCOUNTS, subjects.LEASE_LIMITS,
    ),
    read=(
        _member(subjects.GENERATE_ALL, subjects.ROUTER_QUEUE),
        _member(subjects.generate_all(ANY_CALLER), subjects.ROUTER_QUEUE),
        subjects.AGAIN_ALL, subjects.again_all(ANY_CALLER), subjects.MODELS, subjects.models(ANY_CALLER),
        subjects.SESSION_ROUTE,
        subjects.HEARTBEAT_ALL, subjects.GROUP_DOWN, subjects.ROUTER_ALIVE, subjects.BROKER_DISCONNECT,
        subjects.HOST_REPORT, subjects.SESSION_TURNS, subjects.ADAPTER_CHANGED, subjects.ACCOUNT_CHANGED,
        *(_member(subject, subjects.ROUTER_QUEUE) for subject in MANAGE_ADAPTERS),
        _member(subjects.OUTSIDE_RUNNING, subjects.ROUTER_QUEUE),
        subjects.SESSION_PINNED, subjects.SESSION_GONE, subjects.STATUS, subjects.EXPLAIN,
        subjects.SRV_ALL,
    ),
)  # fmt: skip
_WORKER = BusAccount(
    "worker",
    "leaders of groups",
    publish=(
        _all(subjects.heartbeat("_")), subjects.SESSION_GET, subjects.SESSION_COMMIT, subjects.BLOCKS_FIND,
        subjects.BLOCKS_COMMIT, subjects.SESSION_TURNS, subjects.KV_EVENTS_ALL, PEER, CLAIM, ANY_INBOX,
        streams.usage("*"),
        subjects.OUTSIDE_RUNNING,
    ),
    read=(
        WORK, RESEND, CANCEL, subjects.CANCEL_ALL,
        *(_all(subject) for subject in (subjects.resend("_", ANY_CALLER), subjects.cancel("_", ANY_CALLER))),
        *(_member(subject, subjects.TOKENIZE_QUEUE) for subject in (*TOKENIZE, *TOKENIZE_OUTSIDE)),
        _member(INSPECT_ADAPTER, subjects.TOKENIZE_QUEUE),
        subjects.cancel_all(ANY_CALLER), subjects.ATTACH, DRAIN, LIMIT_KV, PEER, WARM, CLAIM, DELIVERED,
        subjects.KV_HOLDERS, subjects.KV_FOLLOW, KV_REPLAY, KV_SNAPSHOT,
        subjects.SESSION_GONE, subjects.GROUP_DOWN, subjects.STATUS, subjects.EXPLAIN, subjects.PROFILE,
        subjects.SRV_ALL,
    ),
)  # fmt: skip
_KVSTATE = BusAccount(
    "kvstate",
    "the KV state service",
    publish=(
        subjects.SESSION_PINNED, subjects.SESSION_GONE, subjects.ADAPTER_CHANGED, subjects.ACCOUNT_CHANGED,
        subjects.ACCOUNTS, *LEDGERS,
    ),
    read=(
        *(
            _member(subject, subjects.KVSTATE_QUEUE)
            for subject in (
                subjects.SESSION_GET, subjects.SESSION_COMMIT, subjects.SESSION_LIST, subjects.SESSION_DELETE,
                subjects.SESSION_DESCRIBE, subjects.SESSION_PIN, subjects.PINS, subjects.BLOCKS_FIND,
                subjects.BLOCKS_COMMIT, subjects.LEASE, subjects.ADAPTER_PUT, subjects.ADAPTER_DELETE,
                subjects.ADAPTERS, *RESPONSE_CALLS, *ACCOUNT_CALLS, subjects.LEASE_LIMITS,
                subjects.TENANT_ERASE,
            )
        ),
        subjects.ACCOUNT_CHANGED, subjects.STATUS, subjects.EXPLAIN, subjects.SRV_ALL,
    ),
    answers=True,
)  # fmt: skip
_CLI = BusAccount(
    "cli",
    "operators: `ryz status`, `ryz groups`, `ryz explain`, `ryz profile`, `ryz top`, `nats micro`",
    publish=(
        subjects.STATUS, subjects.EXPLAIN, subjects.PROFILE, subjects.SRV_ALL, subjects.MODELS, DRAIN,
        subjects.SESSION_ROUTE, subjects.KV_HOLDERS, subjects.BLOCKS_FIND, subjects.MANAGE_MODEL,
        subjects.PUT_MODEL, *MANAGE_ADAPTERS, subjects.ADAPTERS, *ACCOUNT_CALLS,
    ),
)  # fmt: skip
_HOST = BusAccount(
    "host",
    "agents of hosts, which start and stop groups",
    publish=(subjects.HOST_REPORT, DRAIN, LIMIT_KV, *MANAGE_ADAPTERS, subjects.MODELS),
    read=(START_GROUP, STOP_GROUP, LIMIT_HOSTED_KV, subjects.MANAGE_MODEL, subjects.PUT_MODEL),
    answers=True,
)  # fmt: skip
_INDEXER = BusAccount(
    "indexer",
    "routers of others, which follow KV events of all tenants",
    publish=(subjects.KV_FOLLOW, KV_REPLAY, KV_SNAPSHOT),
    read=(subjects.KV_EVENTS_ALL,),
)
OUTSIDE = "outside"  # the user that every deployment has for services outside, and its tenant
SERVICES: Mapping[str, BusAccount] = {
    account.user: account for account in (_GATEWAY, _ROUTER, _WORKER, _KVSTATE, _HOST, _CLI, _INDEXER)
}


def outside(caller: OutsideService) -> BusAccount:
    """Returns the account of a service outside.

    It may have text generated and tokenized for its tenant, run batches, and ask for the list of models.
    """
    return BusAccount(
        caller.user,
        f"a service of yours, tenant `{caller.tenant}`",
        publish=(
            subjects.generate_all(caller),
            subjects.again_all(caller),
            subjects.complete_all(caller),
            _all(subjects.resend("_", caller)),
            _all(subjects.cancel("_", caller)),
            subjects.cancel_all(caller),
            _all(subjects.tokenize("_", caller)),
            _all(subjects.detokenize("_", caller)),
            subjects.models(caller),
            *subjects.batch_calls(caller),
        ),
    )


ACCOUNTS: Mapping[str, BusAccount] = {**SERVICES, OUTSIDE: outside(OutsideService(OUTSIDE, OUTSIDE))}


def caller_by(url: str, tenant: str = "") -> OutsideService | None:
    """Returns the caller that connects with this URL.

    Args:
        url: The URL of the broker.
        tenant: The caller's tenant; empty if it has the name of the user.

    Returns:
        The caller, or None for the URL of one of our services, or of a broker without accounts.
    """
    user = user_of(url)
    return OutsideService(tenant or user, user) if user and user not in SERVICES else None


def in_inbox(subject: str, caller: OutsideService | None) -> bool:
    """Returns whether a subject is in the inbox of that caller; for services (None) always true."""
    return caller is None or subject.startswith(f"{inbox_prefix(caller.user)}.")


def inbox_prefix(user: str) -> str:
    """Returns the prefix of a user's inboxes; without a user, that of an open broker."""
    return f"{INBOX}.{subjects.token(user)}" if user else INBOX


def user_of(url: str) -> str:
    """Returns the user in the first server of a broker's URL; empty if there is none, or a token."""
    first = urlsplit(url.partition(",")[0].strip())
    return first.username or "" if first.password is not None else ""


def with_user(url: str, user: str, password: str) -> str:
    """Returns the URL of one server with this user and password."""
    scheme, _, address = url.partition("://")
    return f"{scheme}://{quote(user, safe='')}:{quote(password, safe='')}@{address.rpartition('@')[2]}"
