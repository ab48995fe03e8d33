"""The names of a prompt's blocks, as the groups of a model name them."""

from shared import codec, kv_hash
from shared.messages import KVFollowed


def block_names(group: KVFollowed, token_ids: list[int], tenant: str, adapter: str = "") -> list[bytes]:
    """Returns the names of all blocks that a tenant's tokens fill; none if the group's prompts share nothing.

    Args:
        group: What the group said of itself (`KVEventIndex.groups`). Groups with equal fingerprint, KV format
            and sharing have equal names.
        token_ids: The prompt's tokens, from the first on.
        tenant: Whose prompt it is.
        adapter: Fingerprint of the adapter that computes it; empty: the base alone.
    """
    if group.sharing == "off":
        return []
    weights = kv_hash.weights_fingerprint(group.fingerprint, adapter)
    name = kv_hash.root(weights, group.kv_format, tenant if group.sharing == "tenant" else "")
    packed, size, names = codec.pack_tokens(token_ids), 4 * group.block_tokens, list[bytes]()
    for end in range(size, len(packed) + 1, size):
        name = kv_hash.extend_packed(name, packed[end - size : end])
        names.append(name)
    return names
