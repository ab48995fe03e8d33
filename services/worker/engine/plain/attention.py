"""Grouped-query attention of a mixed batch over the paged KV cache, in plain torch.

Decodes of about one length are one padded call, each prefill chunk is a call of its own. Query heads that
share a KV head are laid out so that keys and values are never repeated in memory. Heads are this rank's;
nothing is communicated.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from services.worker.engine.plain.batch import AttentionMetadata, DecodeGroup, PrefillChunk
from services.worker.engine.plain.plain_cache import PlainLayerCache


def paged_attention(
    queries: Tensor, keys: Tensor, values: Tensor, metadata: AttentionMetadata, cache: PlainLayerCache
) -> Tensor:
    """Attention of every token to its sequence so far, as far back as the layer's window reaches.

    Args:
        queries: [tokens, heads, head_dim], rotated.
        keys: [tokens, kv heads, head_dim], rotated; already in the cache.
        values: [tokens, kv heads, head_dim]; already in the cache.
        metadata: Of this layer's window.
        cache: This layer's cache.

    Returns:
        [tokens, heads * head_dim].
    """
    mixed = []
    for decodes in metadata.decodes:
        mixed.append(_decode(queries[decodes.begin : decodes.end], decodes, cache))
    for part in metadata.prefills:
        rows = slice(part.begin, part.end)
        mixed.append(_prefill(queries[rows], keys[rows], values[rows], part, cache))
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def _decode(queries: Tensor, decodes: DecodeGroup, cache: PlainLayerCache) -> Tensor:
    count = decodes.end - decodes.begin
    keys, values = cache.gather(decodes.blocks, count)
    # the heads that share a KV head are its queries: [sequences, kv heads, heads of a group, head_dim]
    grouped = queries.view(count, keys.shape[1], -1, keys.shape[3])
    length = decodes.length
    mixed = F.scaled_dot_product_attention(
        grouped, keys[:, :, :length], values[:, :, :length], attn_mask=decodes.mask
    )
    return mixed.reshape(count, -1)


def _prefill(
    queries: Tensor, keys: Tensor, values: Tensor, part: PrefillChunk, cache: PlainLayerCache
) -> Tensor:
    tokens, kv_heads, dim = keys.shape
    if part.blocks is None:
        past_keys, past_values = keys.transpose(0, 1), values.transpose(0, 1)
    else:
        gathered = cache.gather(part.blocks, 1)
        past_keys, past_values = (side[0, :, : part.length] for side in gathered)
    # [kv heads, heads of a group, tokens, head_dim]; keys and values are broadcast over the group
    grouped = queries.view(tokens, kv_heads, -1, dim).permute(1, 2, 0, 3)
    shape = (kv_heads, grouped.shape[1], part.length, dim)
    mixed = F.scaled_dot_product_attention(
        grouped,
        past_keys.unsqueeze(1).expand(shape),
        past_values.unsqueeze(1).expand(shape),
        attn_mask=part.mask,
        is_causal=part.mask is None,
    )
    return mixed.permute(2, 0, 1, 3).reshape(tokens, -1)
