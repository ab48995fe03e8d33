"""Attention of decodes on a GPU in Triton: reads the paged cache in place, so that no keys are gathered.

A program computes the query heads that share one KV head of one sequence, over a share of its keys; a second
kernel joins the shares (flash decoding: Dao et al., 2023). A sequence's own length decides how much is read,
not that of the padded batch. `paged_attention.py` says which layers are computed so. Triton comes with
torch's CUDA builds for Linux.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from services.worker.rank_protocol.plan import BLOCK_SIZE

TILE = 64  # keys that a program reads at a time
MOST_SHARES = 32  # of a sequence's keys
LARGEST_HEAD = 256  # of head_dim: a tile of keys and one of values are held in shared memory
_PROGRAMS = 528  # a few for each multiprocessor of a large GPU
_LOG2_E = 1.4426950408889634

# pointers into one tensor of inputs are aligned differently for each size of a batch
_UNSPECIALIZED: dict[str, Any] = {
    "do_not_specialize": ["table_width", "num_shares", "query_stride", "scale"],
    "do_not_specialize_on_alignment": ["blocks", "newest"],
}


@triton.jit(**_UNSPECIALIZED)  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]  # noqa: PLR0917 (a kernel takes one pointer for each tensor)
    queries,  # [sequences, heads, dim], heads next to each other
    keys,  # [slots, KV heads, dim]
    values,
    blocks,  # [sequences, table_width]
    newest,  # [sequences]
    mixed,  # [sequences, heads, shares, dim]: the values by the softmax of a share's scores
    sums,  # [sequences, heads, shares, 2]: the largest score, for base 2, and the softmax's sum
    table_width,
    num_shares,
    query_stride,
    scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    sequence, head, share = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    last = tl.load(newest + sequence).to(tl.int32)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(last - WINDOW + 1, 0)
    begin = first // KEYS * KEYS
    tiles = (last - begin) // KEYS + 1
    each = (tiles + num_shares - 1) // num_shares
    from_tile = share * each
    to_tile = tl.minimum(from_tile + each, tiles)

    rows, dims, offsets = tl.arange(0, ROWS), tl.arange(0, PADDED_DIM), tl.arange(0, KEYS)
    own_rows, own_dims = rows < GROUP, dims < DIM
    heads = head * GROUP + rows
    query = tl.load(
        queries + sequence.to(tl.int64) * query_stride + heads[:, None] * DIM + dims[None, :],
        mask=own_rows[:, None] & own_dims[None, :],
        other=0.0,
    )
    peak = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mix = tl.zeros([ROWS, PADDED_DIM], tl.float32)
    for tile in range(from_tile, to_tile):
        at = begin + tile * KEYS + offsets
        seen = (at <= last) & (at >= first)
        block = tl.load(blocks + sequence.to(tl.int64) * table_width + at // PAGE, mask=seen, other=0)
        slots = block.to(tl.int64) * PAGE + at % PAGE
        positions = (slots[:, None] * KV_HEADS + head) * DIM + dims[None, :]
        wanted = seen[:, None] & own_dims[None, :]
        key = tl.load(keys + positions, mask=wanted, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale
        scores = tl.where(seen[None, :], scores, -float("inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))  # of each tile some keys are seen, so it is finite
        shares = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(peak - higher)
        value = tl.load(values + positions, mask=wanted, other=0.0)
        total = total * shrink + tl.sum(shares, 1)
        mix = mix * shrink[:, None] + tl.dot(shares.to(value.dtype), value, input_precision=PRECISION)
        peak = higher
    row = (sequence.to(tl.int64) * (KV_HEADS * GROUP) + heads) * num_shares + share
    # a share without tiles has the peak -inf, so its zeros count for nothing
    mix = mix / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(
        mixed + row[:, None] * DIM + dims[None, :],
        mix.to(mixed.dtype.element_ty),
        mask=own_rows[:, None] & own_dims[None, :],
    )
    if num_shares > 1:
        tl.store(sums + row * 2, peak, mask=own_rows)
        tl.store(sums + row * 2 + 1, total, mask=own_rows)


@triton.jit(do_not_specialize=["num_shares"])  # type: ignore[untyped-decorator]
def _join(  # type: ignore[no-untyped-def]  # noqa: PLR0917
    mixed,
    sums,
    joined,  # [sequences, heads, dim]
    num_shares,
    DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    SHARES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    shares, dims = tl.arange(0, SHARES), tl.arange(0, PADDED_DIM)
    own, own_dims = shares < num_shares, dims < DIM
    positions = row * num_shares + shares
    peaks = tl.load(sums + positions * 2, mask=own, other=-float("inf"))
    totals = tl.load(sums + positions * 2 + 1, mask=own, other=0.0)
    weights = tl.exp2(peaks - tl.max(peaks, 0)) * totals
    weights = weights / tl.sum(weights, 0)
    parts = tl.load(
        mixed + positions[:, None] * DIM + dims[None, :], mask=own[:, None] & own_dims[None, :], other=0.0
    )
    tl.store(
        joined + row * DIM + dims,
        tl.sum(parts * weights[:, None], 0).to(joined.dtype.element_ty),
        mask=own_dims,
    )


def attend_in_place(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    blocks: Tensor,
    newest: Tensor,
    window: int,
    scale: float,
) -> Tensor:
    """Attention of one token of each sequence to its keys up to the newest one.

    Args:
        queries: [sequences, heads, head_dim]; the heads of a sequence are next to each other.
        keys: Of the cache, [slots, KV heads, head_dim].
        values: The same.
        blocks: Table of each sequence, [sequences * blocks a sequence].
        newest: The newest key of each sequence, counted from the first one in its table, [sequences].
        window: Keys that are seen, the newest included; 0: all.

    Returns:
        [sequences, heads * head_dim].
    """
    count, heads, dim = queries.shape
    kv_heads = keys.shape[1]
    width = blocks.numel() // count
    num_shares = _num_shares(count * kv_heads, width * BLOCK_SIZE)
    joined = torch.empty(count, heads, dim, dtype=queries.dtype, device=queries.device)
    mixed = sums = joined
    if num_shares > 1:
        mixed = torch.empty(count, heads, num_shares, dim, dtype=torch.float32, device=queries.device)
        sums = torch.empty(count, heads, num_shares, 2, dtype=torch.float32, device=queries.device)
    padded = triton.next_power_of_2(max(16, dim))
    group = heads // kv_heads
    _attend[(count, kv_heads, num_shares)](
        queries,
        keys,
        values,
        blocks,
        newest,
        mixed,
        sums,
        width,
        num_shares,
        queries.stride(0),
        scale * _LOG2_E,
        KV_HEADS=kv_heads,
        GROUP=group,
        DIM=dim,
        PADDED_DIM=padded,
        WINDOW=window,
        PAGE=BLOCK_SIZE,
        ROWS=max(16, triton.next_power_of_2(group)),  # the least that a matrix unit takes
        KEYS=TILE if dim <= 128 else TILE // 2,
        PRECISION="ieee" if queries.dtype == torch.float32 else "tf32",  # no matter for bf16
    )
    if num_shares > 1:
        _join[(count * heads,)](
            mixed, sums, joined, num_shares, DIM=dim, PADDED_DIM=padded, SHARES=MOST_SHARES
        )
    return joined.view(count, heads * dim)


def _num_shares(programs: int, length: int) -> int:
    """Shares of a sequence's keys: enough for the whole GPU, of two tiles or more each."""
    return max(1, min(MOST_SHARES, -(-_PROGRAMS // programs), length // (2 * TILE)))
