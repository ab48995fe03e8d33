"""Ids of requests and sessions, and the routing key of a request.

The root of a conversation is its tenant, its system prompt and its first user message: the part that stays
the same when a client sends the whole conversation with every turn.
"""

import os
import re
from hashlib import blake2b

from shared.messages import GenerateRequest

ROOT_CHARS = 256  # the beginning of a plain prompt, which grows with every turn, stands for the root
ROOT_TOKEN_BYTES = 256
_MADE = re.compile(r"s-([0-9a-f]{16})-[0-9a-f]{16}")


def new_request_id() -> str:
    """Returns a new request id: 96 random bits."""
    return f"r-{os.urandom(12).hex()}"


def root_hash(tenant: str, system: str, first: str, key: bytes = b"") -> str:
    """Returns 16 hex digits that identify a conversation's root.

    Args:
        first: The first user message.
        key: For a hash that callers see, so that only holders of the key can guess a root; up to 64 bytes.
    """
    data = f"{len(tenant)}:{tenant}{len(system)}:{system}{first}"
    return blake2b(data.encode("utf-8", "surrogatepass"), digest_size=8, key=key).hexdigest()


def request_root(request: GenerateRequest, key: bytes = b"") -> str:
    """Returns the root hash of a request; `key` as in `root_hash`."""
    if request.messages is None:
        if request.prompt is not None:
            return root_hash(request.tenant, "", request.prompt[:ROOT_CHARS], key)
        tokens = (request.prompt_token_ids or b"")[:ROOT_TOKEN_BYTES]
        return root_hash(request.tenant, "tokens", tokens.hex(), key)
    system = first = ""
    for message in request.messages:
        if message.role == "system":
            system = system or message.content
        elif message.role == "user":
            first = message.content
            break
    return root_hash(request.tenant, system, first, key)


def named_root(tenant: str, field: str, value: str, key: bytes = b"") -> str:
    """Returns a root hash for all requests of a tenant that have this value in a field of their bodies.

    Args:
        tenant: Another tenant with the same value gets another hash.
        field: The name of the field.
        value: Its text.
        key: As in `root_hash`.
    """
    return root_hash(tenant, f"\0{field}", value, key)


def new_session_id(root: str) -> str:
    """Returns a session id that contains the conversation's root, so later turns go to the same group."""
    return f"s-{root}-{os.urandom(8).hex()}"


def is_made_session_id(session_id: str) -> bool:
    """Returns whether the id has the form of `new_session_id`, so that its session existed at some time."""
    return _MADE.fullmatch(session_id) is not None


def routing_key(request: GenerateRequest) -> str:
    """Returns the key from which the preferred group is computed.

    It is the root in a made session id, or the session id of the caller, or a root of the request's tenant
    and `route_key`, or its own root. Those never leave the routers, so they need no key.
    """
    if request.session is not None:
        return session_key(request.session.session_id)
    if request.route_key:
        return named_root(request.tenant, "route_key", request.route_key)
    return request_root(request)


def session_key(session_id: str) -> str:
    """Returns the routing key of all requests with this session id."""
    made = _MADE.fullmatch(session_id)
    return made[1] if made else session_id
