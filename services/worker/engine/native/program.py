"""A forward pass as a list of ops: made once at the start, run for every step.

Fills in the structs of the ops. Which ops a decoder needs is in `decoder.py`, the buffers between them in
`operands.py`.
"""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from services.worker.engine.native.adapters.sites import AdapterSite, MatrixPart, adapter_site
from services.worker.engine.native.adapters.slots import AdapterSlots
from services.worker.engine.native.cache import HeadShape, NativeLayerCache
from services.worker.engine.native.layers.gathered_columns import GatheredColumns
from services.worker.engine.native.layers.packed_norm import PackedNorm, norm_rule
from services.worker.engine.native.op_lists import OpLists
from services.worker.engine.native.operands import (
    MAX_ROWS,
    Activation,
    Addition,
    AttentionInputs,
    CutRows,
    PartialSums,
    ResidualStream,
    address_of,
)
from services.worker.engine.native.packed_weights import STORED_TYPES, EmbeddingTable, PackedLinear
from services.worker.engine.native.structs.attention import AttentionRows, PageChoice, Rotary, ScoreRule
from services.worker.engine.native.structs.cache import AttentionLayer
from services.worker.engine.native.structs.ops import (
    AttentionOp,
    CompressOp,
    CutNormOp,
    EmbedOp,
    LinearOp,
    ResidualOp,
    RotateOp,
    ShrinkOp,
    SquareSumOp,
    TileOp,
)
from services.worker.engine.native.structs.rows import CutNorm, LinearOutput, Residual
from services.worker.engine.native.structs.weights import WeightType

CUT_NORMS = 2  # as SUMS in `src/rows/cut_norm.h`


class Program(OpLists):
    """Makes the ops.

    Attributes:
        adapters: The adapters of rows.
        sites: The linears that they can add to.
    """

    def __init__(self) -> None:
        super().__init__()
        self._columns = GatheredColumns()
        self.adapters = AdapterSlots(MAX_ROWS)
        self.sites: list[AdapterSite] = []

    def embed(self, table: EmbeddingTable, out: int, width: int) -> None:
        """Rows of the table by token id into [rows, width]; zeros for the ids of other ranks."""
        stored, op = table.stored, EmbedOp(columns=table.columns, out=out, width=width)
        op.first_id, op.num_ids = table.first_id, table.num_ids
        if isinstance(stored, PackedLinear):
            op.type, op.table, op.form = WeightType.CODES, address_of(stored.weights), stored.form
        else:
            op.type, op.table = STORED_TYPES[stored.dtype], address_of(stored)
        self.append(op, stored)

    def residual(
        self,
        stream: ResidualStream,
        addition: Addition | None,
        norm: PackedNorm | None,
        out: Activation,
        *,
        sampled: bool = False,
    ) -> None:
        """Adds to the stream, and makes the input of a linear from it.

        Args:
            addition: What is added; None: nothing.
            norm: Of the stream; None: the stream itself is the input.
            sampled: For the sampled rows only, which become the first ones of `out`.
        """
        residual = Residual(
            hidden=address_of(stream.hidden),
            columns=stream.columns,
            width=stream.width,
            norm=norm_rule(norm),
            normed=address_of(out.rows),
            tiled=out.tiled,
        )
        if addition is not None:
            residual.partials = addition.sums.address
            residual.partial_stride = MAX_ROWS * stream.width
            residual.num_partials = addition.sums.count
            residual.bias, residual.positions = address_of(addition.bias), address_of(addition.positions)
            residual.sum_norm, residual.scale = norm_rule(addition.norm), addition.scale
            residual.assign = addition.assign
        self._columns.rows_are(out, out.rows if norm is not None else stream.hidden)
        self.append(ResidualOp(sampled=sampled, residual=residual), stream, addition, norm, out)

    def shrink(
        self,
        source: Activation,
        weights: PackedLinear,
        parts: Sequence[MatrixPart],
        *,
        sampled: bool = False,
        overlaps: bool = False,
    ) -> AdapterSite:
        """Multiplies the input of the linear that follows with the adapters of its rows.

        Args:
            parts: The matrices of the linear.
            overlaps: The next op changes nothing that this one reads; threads then do not wait between them.
        """
        site = adapter_site(len(self.sites), self.layer, parts, weights)
        self.sites.append(site)
        rows = self._columns.rows_of(source)
        op = ShrinkOp(
            sampled=sampled,
            overlaps=overlaps,
            x=address_of(rows),
            stride=rows.shape[1],
            inputs=weights.inputs,
            site=site.number,
            table=ctypes.addressof(self.adapters.table),
        )
        self.append(op, rows)
        return site

    def linear(
        self,
        source: Activation,
        weights: PackedLinear,
        out: int,
        stride: int,
        *,
        sampled: bool = False,
        accumulate: bool = False,
        site: AdapterSite | None = None,
    ) -> None:
        """[rows, inputs] -> `weights.columns` floats of each row, rows `stride` floats apart.

        With `accumulate` they are added to what is there. Adapters add to those of a `site`.
        """
        source = self._columns.add(self.append, source, weights)
        output = LinearOutput(
            y=out,
            stride=stride,
            columns=weights.columns,
            bias=address_of(weights.bias),
            rule=weights.rule,
        )
        output.rule.accumulate = accumulate
        self.append(
            LinearOp(
                sampled=sampled,
                type=weights.type,
                input=source.tiled,
                weights=address_of(weights.weights),
                inputs=weights.inputs,
                panels=weights.panels,
                output=output,
                form=weights.form,
                adapters=0 if site is None else ctypes.addressof(self.adapters.table),
                site=0 if site is None else site.number,
            ),
            source,
            weights,
        )

    def attention(
        self,
        heads: HeadShape,
        cache: NativeLayerCache,
        *,
        inputs: AttentionInputs,
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
            block_stride=cache.keys.stride(0),
            window=inputs.window,
            sliding=cache.sliding,
        )
        if inputs.pages is not None:
            layer.pages = PageChoice(inputs.pages.recent, inputs.pages.sinks, inputs.pages.stride)
        rotary = Rotary(
            cos=address_of(inputs.cos),
            sin=address_of(inputs.sin),
            half=0 if inputs.cos is None else inputs.cos.shape[1],
            query_norm=norm_rule(inputs.query_norm),
            key_norm=norm_rule(inputs.key_norm),
            norm_stride=0 if inputs.query_norm is None else inputs.query_norm.stride,
            clip=inputs.clip,
        )
        rows = AttentionRows(
            qkv=address_of(qkv), qkv_stride=qkv.shape[1], out=address_of(out.rows), out_stride=out.width
        )
        rows.rules = ScoreRule(
            scale=inputs.scale,
            softcap=inputs.softcap,
            slopes=address_of(inputs.slopes),
            sinks=address_of(inputs.sinks),
        )
        if inputs.segments is not None:
            rows.parts = inputs.segments.pointers
        half, cold = cache.keys.dtype == torch.float16, 0
        if cache.cold is not None:
            cold = ctypes.addressof(cache.cold.pointers)
        self.append(
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
            self.append(CompressOp(half=half, layer=layer, cold=cold))
        self.append(AttentionOp(half=half, layer=layer, cold=cold, rows=rows), cache, qkv, out)

    def cut_norms(self, norms: Sequence[tuple[CutRows, PackedNorm]], sums: PartialSums) -> None:
        """RMS norms, in place, over dimensions that are cut over the ranks.

        Args:
            norms: At most `CUT_NORMS`, whose sums of squares the ranks exchange together.
            sums: Where the ranks write these, [MAX_ROWS, CUT_NORMS] each.
        """
        assert len(norms) <= CUT_NORMS
        rules = [
            CutNorm(
                rows=rows.tensor[:, rows.first :].data_ptr(),
                stride=rows.tensor.shape[1],
                count=rows.count,
                weight=address_of(norm.weight),
                size=rows.size,
                eps=norm.eps,
                counts=rows.counts,
                own=sums.own + 4 * index,
                sums=sums.address + 4 * index,
                num_ranks=sums.count,
                rank_stride=MAX_ROWS * CUT_NORMS,
            )
            for index, (rows, norm) in enumerate(norms)
        ]
        for rule in rules:
            self.append(SquareSumOp(norm=rule), norms, sums)
        self.rank_barrier(sums)
        for rule in rules:
            self.append(CutNormOp(norm=rule))

    def tile(self, target: Activation) -> None:
        """Copies an activation's rows into its tiles."""
        self.append(TileOp(rows=address_of(target.rows), width=target.width, tiled=target.tiled), target)

    def rank_barrier(self, sums: PartialSums | None = None) -> None:
        """Waits until all ranks have written their partial sums, or their logits."""
        self.append_barrier(None if sums is None else sums.rows)
