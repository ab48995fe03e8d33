"""Grouped-query attention of a mixed batch over the paged KV cache, in plain torch.

Decodes of about one length are one padded call, each prefill chunk is a call of its own. Query heads that
share a KV head are laid out so that keys and values are never repeated in memory. Heads are this rank's;
nothing is communicated.
"""

import torch
from torch import Tensor

from services.worker.engine.plain.batch import AttentionMetadata, DecodeGroup, PrefillChunk
from services.worker.engine.plain.layers.scores import ScoreRules, mix_values
from services.worker.engine.plain.plain_cache import PlainLayerCache


def paged_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    metadata: AttentionMetadata,
    *,
    cache: PlainLayerCache,
    rules: ScoreRules,
) -> Tensor:
    """Attention of every token to its sequence so far, as far back as the layer's window reaches.

    Args:
        queries: [tokens, heads, head_dim], rotated.
        keys: [tokens, kv heads, head_dim], rotated; already in the cache.
        values: [tokens, kv heads, value_dim]; already in the cache.
        rules: What becomes of this layer's scores.

    Returns:
        [tokens, heads * value_dim].
    """
    mixed = []
    for decodes in metadata.decodes:
        mixed.append(_decode(queries[decodes.begin : decodes.end], decodes, cache, rules))
    for part in metadata.prefills:
        rows = slice(part.begin, part.end)
        mixed.append(_prefill(queries[rows], keys[rows], values[rows], part, cache=cache, rules=rules))
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def _decode(queries: Tensor, decodes: DecodeGroup, cache: PlainLayerCache, rules: ScoreRules) -> Tensor:
    count, length = decodes.end - decodes.begin, decodes.length
    if cache.kernels is not None and rules.plain and decodes.window is not None:
        return cache.kernels.attend_in_place(
            queries,
            cache.keys,
            cache.values,
            blocks=decodes.blocks,
            newest=decodes.newest,
            window=decodes.window,
            scale=rules.scale,
        )
    keys, values = (side[:, :, :length] for side in cache.gather(decodes.blocks, count))
    # the heads that share a KV head are its queries: [sequences, kv heads, heads of a group, head_dim]
    grouped = queries.view(count, keys.shape[1], -1, keys.shape[3])
    distances = None
    if rules.slopes is not None:
        distances = torch.arange(length, device=queries.device) - decodes.newest.view(count, 1, 1, 1)
    mixed = mix_values(
        grouped, keys, values, rules, mask=decodes.mask, distances=distances, heads_are_rows=True
    )
    return mixed.reshape(count, -1)


def _prefill(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    part: PrefillChunk,
    *,
    cache: PlainLayerCache,
    rules: ScoreRules,
) -> Tensor:
    tokens, kv_heads, dim = keys.shape
    if part.blocks is None:
        past_keys, past_values = keys.transpose(0, 1), values.transpose(0, 1)
    else:
        past_keys, past_values = (side[0, :, : part.length] for side in cache.gather(part.blocks, 1))
    # [kv heads, heads of a group, tokens, head_dim]; keys and values are broadcast over the group
    grouped = queries.view(tokens, kv_heads, -1, dim).permute(1, 2, 0, 3)
    distances = None
    if rules.slopes is not None or part.mask is None:
        at = torch.arange(part.length, device=queries.device)
        distances = at - at[part.length - tokens :, None]  # [tokens, length]
    shape = (kv_heads, grouped.shape[1], part.length)
    mixed = mix_values(
        grouped,
        past_keys.unsqueeze(1).expand(*shape, dim),
        past_values.unsqueeze(1).expand(*shape, past_values.shape[-1]),
        rules,
        mask=part.mask,
        distances=distances,
    )
    return mixed.permute(2, 0, 1, 3).reshape(tokens, -1)
