"""Names for requests and sessions, and the key by which a request finds its group again.

A conversation's root is its tenant, its system prompt and its first user message: what stays the same when a
client sends the whole conversation again with every turn.
"""

import os
import re
from hashlib import blake2b

from shared.messages import GenerateRequest

ROOT_CHARS = 256  # of a plain prompt, which grows with every turn, the beginning stands for the root
ROOT_TOKEN_BYTES = 256
_MADE = re.compile(r"s-([0-9a-f]{16})-[0-9a-f]{16}")


def new_request_id() -> str:
    """A request id: 96 random bits."""
    return f"r-{os.urandom(12).hex()}"


def root_hash(tenant: str, system: str, first: str, key: bytes = b"") -> str:
    """16 hex digits that name a conversation's root.

    key: for a hash that callers see, so that only its holders can test what a root is; up to 64 bytes.
    """
    data = f"{len(tenant)}:{tenant}{len(system)}:{system}{first}"
    return blake2b(data.encode("utf-8", "surrogatepass"), digest_size=8, key=key).hexdigest()


def request_root(request: GenerateRequest, key: bytes = b"") -> str:
    """The root hash of a request; key: as in `root_hash`."""
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


def new_session_id(root: str) -> str:
    """A session id that carries its conversation's root, so that later turns go where the first one went."""
    return f"s-{root}-{os.urandom(8).hex()}"


def is_made_session_id(session_id: str) -> bool:
    """Whether the id looks like one that was made here, so that its session was there at some time."""
    return _MADE.fullmatch(session_id) is not None


def routing_key(request: GenerateRequest) -> str:
    """What the preferred group is computed from: the root of a made session id, a given id, else the root.

    That last one never leaves the routers, so it needs no key.
    """
    return request_root(request) if request.session is None else session_key(request.session.session_id)


def session_key(session_id: str) -> str:
    """The routing key of all requests that carry this session id."""
    made = _MADE.fullmatch(session_id)
    return made[1] if made else session_id
