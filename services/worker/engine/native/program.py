"""A forward pass as a list of ops: made once at the start, run for every step.

Fills in the structs of the ops. Which ops a decoder needs is in `decoder.py`, the buffers between them in
`operands.py`.
"""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from services.worker.engine.native.native_cache import HeadShape, NativeLayerCache
from services.worker.engine.native.operands import (
    MAX_ROWS,
    Activation,
    PartialSums,
    QueryKeyInputs,
    ResidualStream,
    address_of,
)
from services.worker.engine.native.ops import (
    AttentionOp,
    CompressOp,
    EmbedOp,
    LinearOp,
    Op,
    RankBarrierOp,
    ResidualOp,
    RotateOp,
    TileOp,
)
from services.worker.engine.native.packed_weights import STORED_TYPES, PackedLinear
from services.worker.engine.native.structs import (
    AttentionLayer,
    AttentionRows,
    LinearOutput,
    Residual,
    Rotary,
)

OpList = ctypes.Array[ctypes.c_void_p]


class Program:
    """Ops in their order, and everything that they point to."""

    def __init__(self) -> None:
        self._ops: list[Op] = []
        self._head = 0  # number of ops before the head
        self._kept_alive: list[object] = []

    def embed(self, table: Tensor, first_id: int, out: int, width: int) -> None:
        """Rows of [ids, columns] by token id into [rows, width]; zeros for the ids of other ranks."""
        num_ids, columns = table.shape
        self._append(
            EmbedOp(
                type=STORED_TYPES[table.dtype],
                table=address_of(table),
                columns=columns,
                first_id=first_id,
                num_ids=num_ids,
                out=out,
                width=width,
            ),
            table,
        )

    def residual(
        self,
        stream: ResidualStream,
        partials: PartialSums,
        bias: Tensor | None,
        norm: Tensor,
        *,
        sampled: bool = False,
        assign: bool = False,
    ) -> None:
        """Adds partial sums and bias to the stream, and makes its RMS norm.

        Args:
            stream: The residual stream.
            partials: What the ranks add.
            bias: [width].
            norm: Weights of the norm, [width].
            sampled: For the sampled rows only, which become the first ones of `stream.normed`.
            assign: The sum replaces the stream.
        """
        residual = Residual(
            hidden=address_of(stream.hidden),
            columns=stream.columns,
            width=stream.width,
            partials=partials.address,
            partial_stride=MAX_ROWS * stream.width,
            num_partials=partials.count,
            bias=address_of(bias),
            norm=address_of(norm),
            eps=stream.eps,
            assign=assign,
            normed=address_of(stream.normed.rows),
            tiled=stream.normed.tiled,
        )
        self._append(ResidualOp(sampled=sampled, residual=residual), stream, partials, bias, norm)

    def linear(
        self, source: Activation, weights: PackedLinear, out: int, stride: int, *, sampled: bool = False
    ) -> None:
        """[rows, inputs] -> `weights.columns` floats of each row, rows `stride` floats apart."""
        output = LinearOutput(
            y=out,
            stride=stride,
            columns=weights.columns,
            bias=address_of(weights.bias),
            gated=weights.gated,
        )
        self._append(
            LinearOp(
                sampled=sampled,
                type=weights.type,
                input=source.tiled,
                weights=address_of(weights.weights),
                inputs=weights.inputs,
                panels=weights.panels,
                output=output,
            ),
            source,
            weights,
        )

    def attention(
        self,
        heads: HeadShape,
        cache: NativeLayerCache,
        *,
        window: int,
        inputs: QueryKeyInputs,
        qkv: Tensor,
        out: Activation,
    ) -> None:
        """Rotates queries and keys, stores keys and values, attends: [rows, heads] -> [rows, heads * dim].

        In a layer with a cold zone, blocks that are full are compressed in between.
        """
        layer = AttentionLayer(
            heads=heads.heads,
            kv_heads=heads.kv_heads,
            dim=heads.dim,
            width=heads.width,
            keys=address_of(cache.keys),
            values=address_of(cache.values),
            window=window,
            sliding=cache.sliding,
        )
        query_norm, key_norm = inputs.norms or (None, None)
        rotary = Rotary(
            cos=address_of(inputs.cos),
            sin=address_of(inputs.sin),
            query_norm=address_of(query_norm),
            key_norm=address_of(key_norm),
            eps=inputs.eps,
        )
        rows = AttentionRows(
            qkv=address_of(qkv), qkv_stride=qkv.shape[1], out=address_of(out.rows), out_stride=out.width
        )
        half, cold = cache.keys.dtype == torch.float16, 0
        if cache.cold is not None:
            cold = ctypes.addressof(cache.cold.pointers)
        self._append(
            RotateOp(
                half=half,
                recent_window=cold != 0,
                layer=layer,
                rotary=rotary,
                qkv=rows.qkv,
                stride=rows.qkv_stride,
            ),
            inputs,
        )
        if cold:
            self._append(CompressOp(half=half, layer=layer, cold=cold))
        self._append(AttentionOp(half=half, layer=layer, cold=cold, rows=rows), cache, qkv, out)

    def tile(self, target: Activation) -> None:
        """Copies an activation's rows into its tiles."""
        self._append(
            TileOp(rows=address_of(target.rows), width=target.width, tiled=target.tiled),
            target,
        )

    def rank_barrier(self) -> None:
        """Waits until all ranks have written their partial sums or logits."""
        self._append(RankBarrierOp())

    def begin_head(self) -> None:
        """Marks the ops that follow as the head, which passes without logits leave out."""
        self._head = len(self._ops)

    def segments(self, *, head: bool = True) -> list[OpList]:
        """The ops between the barriers, for collectives that are called from Python."""
        segments: list[list[Op]] = [[]]
        for op in self._ops if head else self._ops[: self._head]:
            if isinstance(op, RankBarrierOp):
                segments.append([])
            else:
                segments[-1].append(op)
        return [_addresses(ops) for ops in segments]

    def whole(self, barriers: bool, *, head: bool = True) -> OpList:
        """All ops; a rank alone needs no barriers."""
        ops = self._ops if head else self._ops[: self._head]
        return _addresses([op for op in ops if barriers or not isinstance(op, RankBarrierOp)])

    def _append(self, op: Op, *keep_alive: object) -> None:
        self._ops.append(op)
        self._kept_alive += keep_alive


def _addresses(ops: Sequence[Op]) -> OpList:
    return (ctypes.c_void_p * len(ops))(*map(ctypes.addressof, ops))
