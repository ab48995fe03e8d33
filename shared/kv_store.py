"""The Redis keys for the bytes of KV blocks: part of the contract between ranks and the KV state service.

A block is a hash with a field for each KV head of the model. A rank that writes a field sets the key to
expire, so that blocks that are never committed vanish. Only the KV state service extends and deletes keys.
`services/worker/engine/kv_transfer/kv_values.py` defines the content of a field.
"""

_PREFIX = b"ryz:kv:data:"
PREFIX_PATTERN = "ryz:kv:data:*"


def data_key(name: bytes) -> bytes:
    """Returns the key of a block; `name` as returned by `kv_hash.extend`."""
    return _PREFIX + name


def name_of(key: bytes) -> bytes:
    """Returns the name of the block in a key of `data_key`."""
    return key[len(_PREFIX) :]


def head_field(head: int) -> bytes:
    """Returns the field of a KV head, counted over the whole model and not per rank."""
    return b"%d" % head
