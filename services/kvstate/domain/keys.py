"""The Redis keys of this service. `shared/kv_hash.py` has the keys for the bytes of KV blocks."""

from hashlib import sha1
from urllib.parse import quote

PREFIX = "ryz"
TENANTS = f"{PREFIX}:tenants"  # the set of tenants that have sessions, for counts
PINS = f"{PREFIX}:pins"  # the sorted set of `member`s with a pin, all of one score: ordered by name
SESSION_PREFIX = f"{PREFIX}:session:"
GONE_PREFIX = f"{PREFIX}:gone:"
INDEX_PREFIX = f"{PREFIX}:sessions:"
# For each tenant; with an empty tenant, for all together:
SIZES_PREFIX = f"{PREFIX}:session-sizes:"  # hash, session id -> bytes; empty id: of all sessions
ENDS_PREFIX = f"{PREFIX}:session-ends:"  # sorted set of session ids by when they expire, in milliseconds
SPARE_PREFIX = f"{PREFIX}:session-spare:"  # sorted set of ids of spare sessions by their last commit
DELETED_PREFIX = f"{PREFIX}:sessions-deleted:"  # sorted set of `short`s with a tombstone, by its time
FLOOR_PREFIX = f"{PREFIX}:gone-before:"  # tombstones up to this time were given up; expires
LEASE_PREFIX = f"{PREFIX}:lease:"  # hash of each lease: holder (`h`), epoch (`e`), end in milliseconds (`u`)

ADAPTERS = f"{PREFIX}:adapters"  # sorted set of "base name", all of one score: ordered by name
ADAPTERS_VERSION = f"{PREFIX}:adapters-version"  # hash: version (`v`), which never goes down
ADAPTER_PREFIX = f"{PREFIX}:adapter:"  # hash of each: fingerprint (`f`), identity (`i`), record (`r`)

# Responses, for each tenant:
RESPONSE_PREFIX = (
    f"{PREFIX}:response:"  # hash: record (`r`), parent (`p`), ended (`e`), owner (`o`), lease (`l`)
)
RESPONSE_SIZES_PREFIX = f"{PREFIX}:response-sizes:"  # hash, id -> bytes; empty id: of all
RESPONSE_ENDS_PREFIX = f"{PREFIX}:response-ends:"  # sorted set of ids by when they expire, in milliseconds
RESPONSES_RUNNING = f"{PREFIX}:responses-running"  # sorted set of `member`s that run, by the end of the lease

KEYS_REQUIRED = f"{PREFIX}:keys-required"  # there while a stored rule refuses requests without a key
LIMIT_PREFIX = f"{PREFIX}:limit:"  # hash of each limit and window, see `limits/lua`; expires with its window
LIMIT_HOLDERS = f"{PREFIX}:limit-holders"  # sorted set of processes that lease, by their last call

SHORT_CHARS = 20  # of `short`

# What is known of KV blocks. Several kinds of fact in a few keys, so that one command reads many blocks.
META = f"{PREFIX}:kv:meta"  # hash, block name -> bytes:parts:created_ms:tenant
ORDER = f"{PREFIX}:kv:order"  # sorted set of names by `block_eviction.score`, lowest goes first
TENANT_ORDER_PREFIX = f"{PREFIX}:kv:order:"  # the same for each tenant
LEASES = f"{PREFIX}:kv:leases"  # sorted set of names by the end of their lease in milliseconds
REFS = f"{PREFIX}:kv:refs"  # hash, name -> sessions that hold it or held it before
HELD_PREFIX = f"{PREFIX}:kv:held:"  # hash of each session that holds blocks, see `blocks/scripts.py`
HOLDERS = f"{PREFIX}:kv:holders"  # sorted set of `member`s that hold blocks, by the time of their next sweep
ACCOUNTS = f"{PREFIX}:kv:accounts"  # hash, tenant -> bytes:blocks:byte_seconds:at_ms; empty name: all
SWEEPER = f"{PREFIX}:kv:sweeper"  # the replica that sweeps; expires


def session(tenant: str, session_id: str) -> str:
    """The hash with a session's version (`v`), record (`r`), summary (`s`), last request (`q`) and pin (`p`).

    `d`: when another session of that id was deleted before.
    """
    return f"{SESSION_PREFIX}{tenant}:{session_id}"


def session_index(tenant: str) -> str:
    """The sorted set of a tenant's session ids, scored by the time of the last commit in milliseconds."""
    return f"{INDEX_PREFIX}{tenant}"


def spare_index(tenant: str) -> str:
    """The sorted set of the ids of a tenant's spare sessions; expired ones may still be in it."""
    return f"{SPARE_PREFIX}{tenant}"


def gone(tenant: str, session_id: str) -> str:
    """The key with the time of a session's deletion in milliseconds; it expires."""
    return f"{GONE_PREFIX}{tenant}:{short(session_id)}"


def short(session_id: str) -> str:
    """Returns the name of a session in tombstones: a hash, so that long ids do not make tombstones larger."""
    return sha1(session_id.encode(), usedforsecurity=False).hexdigest()[:SHORT_CHARS]


def held(tenant: str, session_id: str) -> str:
    """The hash with the holding of a session."""
    return f"{HELD_PREFIX}{tenant}:{session_id}"


def member(tenant: str, session_id: str) -> str:
    """Returns a session as a member of sets; names of tenants contain no space."""
    return f"{tenant} {session_id}"


def split_member(text: str) -> tuple[str, str]:
    """Returns the tenant and the session id of a `member`."""
    tenant, _, session_id = text.partition(" ")
    return tenant, session_id


def cursor(score_ms: int, session_id: str) -> str:
    """Returns the text of a cursor: the last entry of a page."""
    return f"{score_ms}:{quote(session_id, safe='')}"
