"""Where the bytes of KV blocks lie in Redis; part of the contract between ranks and the KV state service.

A block is a hash, with a field for each KV head of the model. Who writes a field sets the key to expire, so
that what nobody told the KV state service of goes by itself; that service alone extends and deletes.
What is inside a field is the business of `services/worker/engine/kv_transfer/kv_values.py`.
"""

_PREFIX = b"ryz:kv:data:"
PREFIX_PATTERN = "ryz:kv:data:*"


def data_key(name: bytes) -> bytes:
    """The Redis key of a block's hash; `name` is that of `kv_hash.extend`, raw."""
    return _PREFIX + name


def name_of(key: bytes) -> bytes:
    """The block's name in a key of `data_key`."""
    return key[len(_PREFIX) :]


def head_field(head: int) -> bytes:
    """The field of KV head `head` of the whole model, whatever rank holds it."""
    return b"%d" % head
