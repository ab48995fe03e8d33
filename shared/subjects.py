"""Every NATS subject and queue group, spelled once.

Names from outside (of models) are escaped, so that they contain no dot, wildcard or space.
"""

from typing import NamedTuple

VERSION = "v1"
PREFIX = f"ryz.{VERSION}"

GENERATE_ALL = f"{PREFIX}.generate.*"
AGAIN_ALL = f"{PREFIX}.again.*"
HEARTBEAT_ALL = f"{PREFIX}.heartbeat.*"
CANCEL_ALL = f"{PREFIX}.cancel"
MODELS = f"{PREFIX}.models"
STATUS = f"{PREFIX}.status"
EXPLAIN = f"{PREFIX}.explain"
PROFILE = f"{PREFIX}.profile"
SESSION_GET = f"{PREFIX}.kvstate.session.get"
SESSION_COMMIT = f"{PREFIX}.kvstate.session.commit"
SESSION_LIST = f"{PREFIX}.kvstate.session.list"
SESSION_DELETE = f"{PREFIX}.kvstate.session.delete"
SESSION_DESCRIBE = f"{PREFIX}.kvstate.session.describe"
SESSION_PIN = f"{PREFIX}.kvstate.session.pin"
PINS = f"{PREFIX}.kvstate.pins"
RESPONSE_PUT = f"{PREFIX}.kvstate.response.put"
RESPONSE_GET = f"{PREFIX}.kvstate.response.get"
RESPONSE_CHAIN = f"{PREFIX}.kvstate.response.chain"
RESPONSE_LEASE = f"{PREFIX}.kvstate.response.lease"
RESPONSE_CLAIM = f"{PREFIX}.kvstate.response.claim"
RESPONSE_DELETE = f"{PREFIX}.kvstate.response.delete"
BLOCKS_FIND = f"{PREFIX}.kvstate.blocks.find"
BLOCKS_COMMIT = f"{PREFIX}.kvstate.blocks.commit"
SESSION_TURNS = f"{PREFIX}.session.turns"
SESSION_PINNED = f"{PREFIX}.session.pinned"
SESSION_GONE = f"{PREFIX}.session.gone"
SESSION_ROUTE = f"{PREFIX}.session.route"
KV_HOLDERS = f"{PREFIX}.kv.holders"
KV_EVENTS_ALL = f"{PREFIX}.kv.events.*"
KV_FOLLOW = f"{PREFIX}.kv.follow"
GROUP_DOWN = f"{PREFIX}.group.down"
ROUTER_ALIVE = f"{PREFIX}.router.alive"
HOST_REPORT = f"{PREFIX}.host.report"
MANAGE_MODEL = f"{PREFIX}.manage.model"
PUT_MODEL = f"{PREFIX}.manage.put"
LOAD_ADAPTER = f"{PREFIX}.manage.adapter.load"
UNLOAD_ADAPTER = f"{PREFIX}.manage.adapter.unload"
LEASE = f"{PREFIX}.kvstate.lease"
ADAPTER_PUT = f"{PREFIX}.kvstate.adapter.put"
ADAPTER_DELETE = f"{PREFIX}.kvstate.adapter.delete"
ADAPTERS = f"{PREFIX}.kvstate.adapters"
ADAPTER_CHANGED = f"{PREFIX}.adapter.changed"
ACCOUNT_CHANGE = f"{PREFIX}.kvstate.account.change"
ACCOUNTS = f"{PREFIX}.kvstate.accounts"
ACCOUNT_CHANGED = f"{PREFIX}.account.changed"
AUDIT = f"{PREFIX}.kvstate.audit"
USAGE = f"{PREFIX}.kvstate.usage"
LEASE_LIMITS = f"{PREFIX}.kvstate.limits.lease"
TENANT_ERASE = f"{PREFIX}.kvstate.tenant.erase"
ATTACH = f"{PREFIX}.attach"
OUTSIDE_RUNNING = f"{PREFIX}.outside.running"
# The broker's event for a client that disconnected, in JSON; its configuration imports it under this subject
BROKER_DISCONNECT = f"{PREFIX}.broker.disconnect"

TENANTS = f"{PREFIX}.tenant."  # begins the subjects of callers outside; tenant and user come next

# Discovery of services (ADR-32 of NATS): a verb, then perhaps the service's name and instance
SRV_ALL = "$SRV.>"

ROUTER_QUEUE = "router"
GATEWAY_QUEUE = "gateway"
KVSTATE_QUEUE = "kvstate"
TOKENIZE_QUEUE = "tokenize"  # the leaders of a model

HEADER_TIMEOUT = "Ryz-Timeout-Ms"
HEADER_REQUEST = "Ryz-Request-Id"  # the request that a call is made for, for logs and traces
HEADER_TENANT = "Ryz-Tenant"  # of a call to the KV state service that no turn waits for

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


def token(name: str) -> str:
    """Escapes a name so that it is one subject token: bytes outside [A-Za-z0-9_-] become =XX (hex)."""
    return "".join(c if c in _PLAIN else "".join(f"={b:02X}" for b in c.encode()) for c in name)


def name_in(escaped: str) -> str:
    """Returns the name that `token` has escaped; bytes that are no text become U+FFFD."""
    parts = escaped.encode().split(b"=")
    name = parts[0]
    for part in parts[1:]:
        try:
            name += bytes([int(part[:2], 16)]) + part[2:]
        except ValueError:
            name += b"=" + part
    return name.decode("utf-8", "replace")


class OutsideService(NamedTuple):
    """A service outside: its user of the broker may publish on the subjects of this pair only.

    Gateways have a class of the same name for one call (`services/gateway/admission/caller.py`).
    """

    tenant: str
    user: str


ANY_CALLER = OutsideService("*", "*")  # in the subjects that routers and leaders subscribe to


def _callers(caller: OutsideService | None) -> str:
    return PREFIX if caller is None else f"{TENANTS}{caller.tenant}.{caller.user}"


def caller_of(subject: str) -> OutsideService | None:
    """Returns the caller outside that alone may publish on a subject; None for subjects of services."""
    if not subject.startswith(TENANTS):
        return None
    tenant, user, _ = subject.removeprefix(TENANTS).split(".", 2)
    return OutsideService(tenant, user)


def tenant_of(subject: str, named: str) -> str:
    """Returns the tenant that the broker vouches for; on subjects of services the one that is named."""
    caller = caller_of(subject)
    return named if caller is None else caller.tenant


def generate(model: str, caller: OutsideService | None = None) -> str:
    """Returns the subject for the `GenerateRequest`s of a caller; the queue group of the routers listens."""
    return f"{_callers(caller)}.generate.{token(model)}"


def generate_all(caller: OutsideService) -> str:
    """Returns the pattern for the requests of callers outside, for every model."""
    return f"{_callers(caller)}.generate.*"


def again(model: str, caller: OutsideService | None = None) -> str:
    """Returns the subject for `GenerateRequest`s that no group has answered; every router listens.

    A router that stands still keeps its share of the queue group's requests until the broker notices.
    """
    return f"{_callers(caller)}.again.{token(model)}"


def again_all(caller: OutsideService) -> str:
    """Returns the pattern for such requests of callers outside, for every model."""
    return f"{_callers(caller)}.again.*"


def complete(model: str, caller: OutsideService | None = None) -> str:
    """Returns the subject for whole answers in JSON; the queue group of gateways listens."""
    return f"{_callers(caller)}.complete.{token(model)}"


def complete_all(caller: OutsideService | None = None) -> str:
    """Returns the pattern for such calls, for every model."""
    return f"{_callers(caller)}.complete.*"


def tokenize(model: str, caller: OutsideService | None = None) -> str:
    """Returns the subject for `TokenizeQuery`s; the leaders of the model listen, as a queue group."""
    return f"{_callers(caller)}.tokenize.{token(model)}"


def detokenize(model: str, caller: OutsideService | None = None) -> str:
    """Returns the subject for `DetokenizeQuery`s; the leaders of the model listen, as a queue group."""
    return f"{_callers(caller)}.detokenize.{token(model)}"


def inspect_adapter(model: str) -> str:
    """Returns the subject for `InspectAdapter`; the leaders of the base listen, as a queue group."""
    return f"{PREFIX}.adapter.inspect.{token(model)}"


def models(caller: OutsideService | None = None) -> str:
    """Returns the subject for `ListModels`; every router answers, and the first answer counts."""
    return f"{_callers(caller)}.models"


def work(group: str) -> str:
    """Returns the subject for `Work` of routers; the leader of the group listens."""
    return f"{PREFIX}.work.{token(group)}"


def cancel(group: str, caller: OutsideService | None = None) -> str:
    """Returns the subject for `Cancel`s of requests that this group accepted."""
    return f"{_callers(caller)}.cancel.{token(group)}"


def cancel_all(caller: OutsideService | None = None) -> str:
    """Returns the subject for `Cancel`s without a known group; every leader listens."""
    return f"{_callers(caller)}.cancel"


def resend(group: str, caller: OutsideService | None = None) -> str:
    """Returns the subject for `Resend`s to a group's leader."""
    return f"{_callers(caller)}.resend.{token(group)}"


def delivered(group: str) -> str:
    """Returns the subject for `Delivered` of gateways to a group's leader."""
    return f"{PREFIX}.delivered.{token(group)}"


def peer(group: str) -> str:
    """Returns the subject on which a leader is asked for a session's record while the store is away."""
    return f"{PREFIX}.session.peer.{token(group)}"


def kv_events(group: str) -> str:
    """Returns the subject on which a leader publishes its `KVEvents`."""
    return f"{PREFIX}.kv.events.{token(group)}"


def kv_replay(group: str) -> str:
    """Returns the subject for `KVReplay` to a group's leader."""
    return f"{PREFIX}.kv.replay.{token(group)}"


def kv_snapshot(group: str) -> str:
    """Returns the subject for `KVSnapshotQuery` to a group's leader."""
    return f"{PREFIX}.kv.snapshot.{token(group)}"


def warm(group: str) -> str:
    """Returns the subject for `WarmSession` to a group's leader."""
    return f"{PREFIX}.kv.warm.{token(group)}"


def claim(group: str) -> str:
    """Returns the subject for `ClaimGroup` of leaders of that group."""
    return f"{PREFIX}.claim.{token(group)}"


def drain(group: str) -> str:
    """Returns the subject for `DrainGroup` to a group's leader."""
    return f"{PREFIX}.drain.{token(group)}"


def limit_kv(group: str) -> str:
    """Returns the subject for `LimitKV` to a group's leader."""
    return f"{PREFIX}.kv.limit.{token(group)}"


def heartbeat(group: str) -> str:
    """Returns the subject for the `Heartbeat` of a leader; routers listen on `HEARTBEAT_ALL`."""
    return f"{PREFIX}.heartbeat.{token(group)}"


def batch_calls(caller: OutsideService | None = None) -> tuple[str, str]:
    """Returns the patterns for calls about files and batches; the queue group of the gateways listens."""
    return f"{_callers(caller)}.files.*", f"{_callers(caller)}.batches.*"


def batch_call(name: str, caller: OutsideService | None = None) -> str:
    """Returns the subject of such a call.

    Names: `files.put`, `files.join`, `files.read`, `files.query`, `batches.create`, `batches.query`.
    """
    return f"{_callers(caller)}.{name}"


def start_group(host: str) -> str:
    """Returns the subject for `StartGroup` to a host's agent."""
    return f"{PREFIX}.host.start.{token(host)}"


def stop_group(host: str) -> str:
    """Returns the subject for `StopGroup` to a host's agent."""
    return f"{PREFIX}.host.stop.{token(host)}"


def limit_hosted_kv(host: str) -> str:
    """Returns the subject for `LimitKV` to a host's agent."""
    return f"{PREFIX}.host.kv.{token(host)}"
