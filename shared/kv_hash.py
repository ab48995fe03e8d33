"""Names of KV blocks by their content: a hash chain over everything that decides what a block holds.

A block's keys and values follow from the weights, from how they are kept, and from all tokens up to its
last one, so blocks of one name can stand for each other, in any group. The root decides who shares with whom.

The format, which names stored blocks and therefore changes only together with `VERSION`: every name is a
BLAKE2b digest (RFC 7693) of 16 bytes. The root is that of VERSION, fingerprint, KV format and tenant in
UTF-8, each after its length in bytes as 4 bytes little-endian. The name of a block is that of its parent's
name (of the root for the first block) and its 16 token ids, each as 4 bytes little-endian.
"""

import functools
import struct
from collections.abc import Sequence
from hashlib import blake2b

VERSION = "ryz.kv.1"
BLOCK_TOKENS = 16
BLOCK_BYTES = 4 * BLOCK_TOKENS  # of token ids
NAME_BYTES = 16
_TOKENS = struct.Struct(f"<{BLOCK_TOKENS}I")


@functools.lru_cache(maxsize=1024)
def root(fingerprint: str, kv_format: str, tenant: str) -> bytes:
    """The parent of first blocks.

    Args:
        fingerprint: Of weights and config.
        kv_format: How keys and values are kept, such as `fp32`.
        tenant: Who may share the blocks; empty: everybody.
    """
    digest = blake2b(digest_size=NAME_BYTES)
    for field in (VERSION, fingerprint, kv_format, tenant):
        raw = field.encode()
        digest.update(len(raw).to_bytes(4, "little") + raw)
    return digest.digest()


def split(names: bytes) -> list[bytes]:
    """Names that were packed one after another; a rest that is no whole name is left out."""
    return [names[at : at + NAME_BYTES] for at in range(0, len(names) - NAME_BYTES + 1, NAME_BYTES)]


def extend(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The name of a block of these 16 tokens; `parent` is that of the block before it, or the root."""
    return blake2b(parent + _TOKENS.pack(*token_ids), digest_size=NAME_BYTES).digest()


def extend_packed(parent: bytes, token_ids: bytes) -> bytes:
    """The same name, of 16 token ids that are packed already, as messages have them (`codec.pack_tokens`)."""
    return blake2b(parent + token_ids, digest_size=NAME_BYTES).digest()
