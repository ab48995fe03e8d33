"""Adds the ops of attention to a program: from the input of a layer to the mixed values of its heads."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from services.worker.engine.config.layer import AttentionConfig
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.rope import RopeConfig
from services.worker.engine.native.adapters.sites import MatrixPart
from services.worker.engine.native.cache import HeadShape, NativeLayerCache
from services.worker.engine.native.layers.packed_layer import NativeAttention, NativeLayer
from services.worker.engine.native.operands import (
    MAX_ROWS,
    Activation,
    AttentionInputs,
    CutRows,
    InputKinds,
    PartialSums,
    SegmentRoom,
)
from services.worker.engine.native.packed_weights import buffer, padded
from services.worker.engine.native.program import Program
from services.worker.rank_protocol.page_policy import PagePolicy


class RankPosition(NamedTuple):
    """Which rank of how many, and how many threads it has."""

    rank: int
    world: int
    threads: int = 1


class AttentionOps:
    """Attention of all layers, which share their buffers.

    Args:
        kinds: In which forms linears read their inputs.
        positions: Of a sequence at most.
        pages: Which pages a token reads in layers without a window; None: all.

    Attributes:
        mixed: The mixed values, not yet in tiles.
    """

    def __init__(
        self,
        config: ModelConfig,
        heads: HeadShape,
        position: RankPosition,
        *,
        kinds: InputKinds,
        positions: int,
        pages: PagePolicy | None = None,
    ) -> None:
        self._config, self._heads, self._pages = config, heads, pages
        self._qkv = buffer(MAX_ROWS, padded((heads.heads + 2 * heads.kv_heads) * heads.dim))
        self.mixed = Activation.allocate(heads.heads * heads.dim, kinds)
        keys = heads.kv_heads * heads.dim
        self._parts = (
            MatrixPart("self_attn.q_proj", heads.heads * heads.dim),
            MatrixPart("self_attn.k_proj", keys),
            MatrixPart("self_attn.v_proj", keys),
        )
        # of ranks that share a KV head only the first one counts it
        kv_heads, (rank, world, threads) = config.num_kv_heads, position
        shared = kv_heads < world and rank * kv_heads // world == (rank - 1) * kv_heads // world
        self._counts_keys = not (rank and shared)
        # a lone thread computes one segment after the other, with the same result
        self._segments = SegmentRoom.allocate(heads, positions) if threads > 1 else None

    def add(
        self,
        program: Program,
        layer: NativeLayer,
        *,
        source: Activation,
        cache: NativeLayerCache,
        rotations: Mapping[RopeConfig, tuple[Tensor, Tensor]],
        squares: Iterator[PartialSums],
    ) -> None:
        """Adds attention of one layer.

        Args:
            cache: Where keys and values go.
            rotations: Cosines and sines of each kind.
            squares: Where ranks exchange sums of squares, in turns.
        """
        config, weights = layer.config.attention, layer.attention
        site = program.shrink(source, weights.qkv, self._parts)
        program.linear(source, weights.qkv, self._qkv.data_ptr(), self._qkv.shape[1], site=site)
        over_all = config.qk_norm is not None and config.qk_norm.scope == "all"
        if over_all:
            self._add_head_norms(program, weights, next(squares))
        inputs = replace(
            _inputs(config, weights, rotations, over_all),
            segments=self._segments,
            pages=None if config.window else self._pages,
        )
        program.attention(self._heads, cache, inputs=inputs, qkv=self._qkv, out=self.mixed)
        if weights.output_norm is not None:
            size = self._config.num_heads * self._heads.dim
            part = CutRows(
                tensor=self.mixed.rows, first=0, count=self._heads.heads * self._heads.dim, size=size
            )
            program.cut_norms([(part, weights.output_norm)], next(squares))

    def _add_head_norms(self, program: Program, weights: NativeAttention, squares: PartialSums) -> None:
        """Norms of queries and keys over all heads of the model."""
        assert weights.query_norm is not None
        assert weights.key_norm is not None
        dim, own = self._heads.dim, self._heads.heads * self._heads.dim
        queries = CutRows(tensor=self._qkv, first=0, count=own, size=self._config.num_heads * dim)
        keys = CutRows(
            tensor=self._qkv,
            first=own,
            count=self._heads.kv_heads * dim,
            size=self._config.num_kv_heads * dim,
            counts=self._counts_keys,
        )
        program.cut_norms([(queries, weights.query_norm), (keys, weights.key_norm)], squares)


def _inputs(
    config: AttentionConfig,
    weights: NativeAttention,
    rotations: Mapping[RopeConfig, tuple[Tensor, Tensor]],
    over_all: bool,
) -> AttentionInputs:
    cos, sin = (None, None) if config.rope is None else rotations[config.rope]
    return AttentionInputs(
        cos=cos,
        sin=sin,
        query_norm=None if over_all else weights.query_norm,
        key_norm=None if over_all else weights.key_norm,
        clip=config.clip_qkv,
        window=config.window,
        scale=config.scale,
        softcap=config.softcap,
        slopes=weights.slopes,
        sinks=weights.sinks,
    )
