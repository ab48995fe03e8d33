"""Names of KV blocks, and the Redis keys of their bytes, for ranks, leaders and the KV state service.

A name is a hash chain over everything that determines the content of a block.

Keys and values of a block follow from the weights, the KV format, and all tokens up to its last one, so
blocks of one name are interchangeable in all groups. The root contains the tenant, so that tenants share no
blocks.

The format names stored blocks, so it changes only together with `VERSION`. Every name is a BLAKE2b digest
(RFC 7693) of 16 bytes. The root is that of VERSION, fingerprint, KV format and tenant in UTF-8, each after
its length in bytes as 4 bytes little-endian. The name of a block is that of its parent's name (of the root
for the first block) and its 16 token ids, each as 4 bytes little-endian.

In Redis a block is a hash with a field for each KV head of the model. A rank that writes a field sets the key
to expire, so that blocks that are never committed vanish. Only the KV state service extends and deletes keys.
`services/worker/engine/kv_transfer/kv_values.py` defines the content of a field.
"""

import functools
import struct
from collections.abc import Sequence
from hashlib import blake2b

VERSION = "ryz.kv.1"
BLOCK_TOKENS = 16
BLOCK_BYTES = 4 * BLOCK_TOKENS  # of token ids
NAME_BYTES = 16
PREFIX_PATTERN = "ryz:kv:data:*"  # of the keys in Redis
_PREFIX = b"ryz:kv:data:"
_TOKENS = struct.Struct(f"<{BLOCK_TOKENS}I")


@functools.lru_cache(maxsize=1024)
def root(fingerprint: str, kv_format: str, tenant: str) -> bytes:
    """Returns the parent of first blocks.

    Args:
        kv_format: How keys and values are stored, such as `fp32`.
        tenant: The tenant that may share the blocks; empty for all tenants.
    """
    digest = blake2b(digest_size=NAME_BYTES)
    for field in (VERSION, fingerprint, kv_format, tenant):
        raw = field.encode()
        digest.update(len(raw).to_bytes(4, "little") + raw)
    return digest.digest()


def weights_fingerprint(base: str, adapter: str) -> str:
    """Returns the name of the weights that a base and an adapter are together; `adapter` empty: the base.

    Keys and values depend on both, and so does each token that follows.
    """
    return f"{base}+{adapter}" if adapter else base


def split(names: bytes) -> list[bytes]:
    """Returns names that were packed one after another, without an incomplete one at the end."""
    return [names[at : at + NAME_BYTES] for at in range(0, len(names) - NAME_BYTES + 1, NAME_BYTES)]


def extend(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Returns the name of a block of these 16 tokens after the block `parent`, or after the root."""
    return blake2b(parent + _TOKENS.pack(*token_ids), digest_size=NAME_BYTES).digest()


def extend_packed(parent: bytes, token_ids: bytes) -> bytes:
    """Returns the same as `extend` for 16 packed token ids (`codec.pack_tokens`)."""
    return blake2b(parent + token_ids, digest_size=NAME_BYTES).digest()


def data_key(name: bytes) -> bytes:
    """Returns the key of a block; `name` as returned by `extend`."""
    return _PREFIX + name


def name_of(key: bytes) -> bytes:
    """Returns the name of the block in a key of `data_key`."""
    return key[len(_PREFIX) :]


def head_field(head: int) -> bytes:
    """Returns the field of a KV head, counted over the whole model and not per rank."""
    return b"%d" % head
