"""Rotates queries and keys and stores keys and values in the paged cache, in one Triton kernel for GPUs.

In torch operators the same takes seven kernels for each layer, each of which lasts little longer than its
launch.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

_UNSPECIALIZED: dict[str, Any] = {"do_not_specialize_on_alignment": ["slots"]}


@triton.jit(**_UNSPECIALIZED)  # type: ignore[untyped-decorator]
def _rotate_and_store(  # type: ignore[no-untyped-def]  # noqa: PLR0917 (a pointer for each tensor)
    states,  # [tokens, heads + 2 * KV heads, dim]
    cosines,  # fp32 [tokens, rotated dim]
    sines,
    slots,  # [tokens]
    keys,  # [slots, KV heads, dim]
    values,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    ROTATED: tl.constexpr,
):
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    dims = tl.arange(0, PADDED_DIM)
    own = dims < DIM
    row = states + (token * (HEADS + 2 * KV_HEADS) + head) * DIM
    state = tl.load(row + dims, mask=own, other=0.0)
    if ROTATED > 0:  # noqa: SIM102 (known when it is compiled, unlike the next)
        if head < HEADS + KV_HEADS:
            turned = dims < ROTATED
            other = tl.where(dims < ROTATED // 2, dims + ROTATED // 2, dims - ROTATED // 2)
            partner = tl.load(row + other, mask=turned, other=0.0).to(tl.float32)
            cosine = tl.load(cosines + token * ROTATED + dims, mask=turned, other=1.0)
            sine = tl.load(sines + token * ROTATED + dims, mask=turned, other=0.0)
            tl.debug_barrier()  # a partner is read before another thread overwrites it
            state = (state.to(tl.float32) * cosine + partner * sine).to(states.dtype.element_ty)
            tl.store(row + dims, state, mask=own)
    if head >= HEADS:
        slot = tl.load(slots + token)
        if head < HEADS + KV_HEADS:
            tl.store(keys + (slot * KV_HEADS + head - HEADS) * DIM + dims, state, mask=own)
        else:
            tl.store(values + (slot * KV_HEADS + head - HEADS - KV_HEADS) * DIM + dims, state, mask=own)


def rotate_and_store(
    states: Tensor,
    rotation: tuple[Tensor, Tensor] | None,
    slots: Tensor,
    keys: Tensor,
    values: Tensor,
) -> None:
    """Rotates queries and keys in place, and stores keys and values at the tokens' slots.

    Args:
        states: Query heads, key heads, value heads, contiguous [tokens, heads + 2 * KV heads, head_dim].
        rotation: From `RotaryEmbedding.at`, each [tokens, 1, rotated dim]; None: nothing is rotated.
        slots: [tokens].
        keys: Of the cache, [slots, KV heads, head_dim].
        values: The same.
    """
    tokens, all_heads, dim = states.shape
    kv_heads = keys.shape[1]
    cosines, sines = rotation or (states, states)
    _rotate_and_store[(tokens, all_heads)](
        states,
        cosines,
        sines,
        slots,
        keys,
        values,
        HEADS=all_heads - 2 * kv_heads,
        KV_HEADS=kv_heads,
        DIM=dim,
        PADDED_DIM=triton.next_power_of_2(dim),
        ROTATED=0 if rotation is None else cosines.shape[-1],
        num_warps=1,  # a row has at most 256 numbers
    )
