"""The decoder of `plain/model.py` as a program of kernels: the same layers, one op after another.

With several ranks, the embedding and the row-parallel linears write partial sums. A rank barrier makes them
visible, and the residual op that follows adds them in the order of ranks and makes the next input.
"""

from collections.abc import Mapping
from functools import partial
from itertools import cycle

from torch import Tensor

from services.worker.engine.config.model import ModelConfig
from services.worker.engine.config.rope import RopeConfig
from services.worker.engine.native.adapters.sites import HEAD, MatrixPart
from services.worker.engine.native.all_reduce_buffers import AllReduceBuffers
from services.worker.engine.native.cache import NativeCache, heads_of
from services.worker.engine.native.experts.ops import ExpertOps
from services.worker.engine.native.layers.attention_ops import AttentionOps, RankPosition
from services.worker.engine.native.layers.packed_layer import NativeLayer, NativeMlp
from services.worker.engine.native.layers.packed_norm import PackedNorm
from services.worker.engine.native.operands import (
    MAX_ROWS,
    Activation,
    Addition,
    CutRows,
    PartialSums,
    ResidualStream,
)
from services.worker.engine.native.packed_weights import PackedLinear, buffer, padded
from services.worker.engine.native.program import Program
from services.worker.engine.native.weights import NativeWeights
from services.worker.rank_protocol.page_policy import PagePolicy
from services.worker.rank_protocol.plan import BLOCK_SIZE

Rotations = Mapping[RopeConfig, tuple[Tensor, Tensor]]  # cosines and sines by position


class NativeDecoder:
    """The program of one rank, and its buffers.

    Args:
        cache: Where keys and values go.
        rotations: Of each kind that layers have, [positions, half of the rotated dimensions] each.
        buffers: Where the ranks' partial sums and logits are combined.
        pages: Which pages a token reads in layers without a window; None: all.

    Attributes:
        sampled_rows: After a pass the sampled rows behind the last norm, [MAX_ROWS, padded hidden].
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: NativeWeights,
        *,
        position: RankPosition,
        cache: NativeCache,
        rotations: Rotations,
        buffers: AllReduceBuffers,
        pages: PagePolicy | None = None,
    ) -> None:
        self._buffers, heads = buffers, heads_of(config, position.rank, position.world)
        self._sums, self._squares = cycle(buffers.parts), cycle(buffers.squares)
        self._stream = ResidualStream(buffer(MAX_ROWS, padded(config.hidden_size)), config.hidden_size)
        self._kinds = weights.input_kinds
        self._normed = Activation.allocate(config.hidden_size, weights.input_kinds)
        # a parallel layer may have another norm for its MLP
        self._mlp_normed = self._normed
        if any(layer.parallel and layer.mlp_norm for layer in config.layers):
            self._mlp_normed = Activation.allocate(config.hidden_size, weights.input_kinds)
        self._inner: dict[int, Activation] = {}  # by the number of features
        self.program = Program()
        self.sampled_rows = self._normed.rows
        positions = min(config.context_length, cache.sizes.num_blocks * BLOCK_SIZE)
        self._attention = AttentionOps(
            config, heads, position, kinds=weights.input_kinds, positions=positions, pages=pages
        )
        self._experts = ExpertOps(config.hidden_size, weights.input_kinds)
        self._add_embedding(config, weights)
        # each layer ends with the norm that the next one, or the head, reads
        followers = [*weights.layers[1:], None]
        for index, (layer, follower) in enumerate(zip(weights.layers, followers, strict=True)):
            self.program.begin_layer()
            self._attention.add(
                self.program,
                layer,
                source=self._normed,
                cache=cache.layers[index],
                rotations=rotations,
                squares=self._squares,
            )
            self._add_layer(layer, weights.norm if follower is None else follower.input_norm, follower)
        self.program.begin_head()
        head = weights.head
        site = self.program.shrink(self._normed, head, [MatrixPart(HEAD[1], head.columns)], sampled=True)
        self.program.linear(
            self._normed, head, buffers.own_logits, buffers.logits.shape[1], sampled=True, site=site
        )
        if buffers.barrier is not None:
            self.program.rank_barrier()

    def _add_embedding(self, config: ModelConfig, weights: NativeWeights) -> None:
        sums, first = self._buffers.embedding, weights.layers[0]
        self.program.embed(weights.embedding, sums.own, self._stream.width)
        self.program.rank_barrier(sums)
        addition = Addition(sums=sums, scale=config.embedding_scale, positions=weights.positions, assign=True)
        self._add_to_stream(addition, first.input_norm, first)

    def _add_layer(
        self, layer: NativeLayer, next_norm: PackedNorm | None, follower: NativeLayer | None
    ) -> None:
        """What follows attention: the sum of both parts of a layer, one after the other or together."""
        scale, sums = layer.config.residual_scale, next(self._sums)
        self._add_row_parallel(self._attention.mixed, layer.attention.output, sums, "self_attn.o_proj")
        bias = layer.attention.output_bias
        if layer.config.parallel:
            source = self._normed if layer.mlp_norm is None else self._mlp_normed
            self._add_second_part(layer, source, sums, accumulate=True)
            if layer.down_bias is not None:
                bias = layer.down_bias if bias is None else bias + layer.down_bias
            norm = None
        else:
            self.program.rank_barrier(sums)
            addition = Addition(sums=sums, bias=bias, norm=layer.post_attention_norm, scale=scale)
            self.program.residual(self._stream, addition, layer.mlp_norm, self._normed)
            sums = next(self._sums)
            self._add_second_part(layer, self._normed, sums)
            bias, norm = layer.down_bias, layer.post_mlp_norm
        self.program.rank_barrier(sums)
        self._add_to_stream(Addition(sums=sums, bias=bias, norm=norm, scale=scale), next_norm, follower)

    def _add_to_stream(
        self, addition: Addition, norm: PackedNorm | None, follower: NativeLayer | None
    ) -> None:
        """Adds, and makes the inputs of the layer that follows, or of the head if there is none."""
        self.program.residual(self._stream, addition, norm, self._normed, sampled=follower is None)
        if follower is not None and follower.config.parallel and follower.mlp_norm is not None:
            self.program.residual(self._stream, None, follower.mlp_norm, self._mlp_normed)

    def _add_second_part(
        self, layer: NativeLayer, source: Activation, sums: PartialSums, *, accumulate: bool = False
    ) -> None:
        """The MLP, or the experts with the MLP that every token takes."""
        mlp = layer.mlp
        if layer.experts is not None:
            # adapters add neither to experts nor to what all rows take beside them
            self._experts.add(
                self.program,
                layer.experts,
                source=source,
                sums=sums,
                accumulate=accumulate,
                add_shared=None if mlp is None else partial(self._add_mlp, mlp, source, adapted=False),
            )
        elif mlp is not None:
            self._add_mlp(mlp, source, sums, accumulate=accumulate)

    def _add_mlp(
        self,
        mlp: NativeMlp,
        source: Activation,
        sums: PartialSums,
        *,
        accumulate: bool = False,
        adapted: bool = True,
    ) -> None:
        inner, site = self._inner_of(mlp), None
        if adapted:
            modules = ("mlp.gate_proj", "mlp.up_proj") if mlp.up.rule.gated else ("mlp.up_proj",)
            parts = [MatrixPart(module, mlp.up.columns) for module in modules]
            site = self.program.shrink(source, mlp.up, parts)
        self.program.linear(source, mlp.up, inner.rows.data_ptr(), inner.width, site=site)
        if mlp.inner_norm is not None:
            part = CutRows(tensor=inner.rows, first=0, count=mlp.up.columns, size=mlp.inner)
            self.program.cut_norms([(part, mlp.inner_norm)], next(self._squares))
        down = "mlp.down_proj" if adapted else ""
        self._add_row_parallel(inner, mlp.down, sums, down, accumulate=accumulate)

    def _inner_of(self, mlp: NativeMlp) -> Activation:
        features = mlp.up.columns
        if features not in self._inner:
            self._inner[features] = Activation.allocate(features, self._kinds)
        return self._inner[features]

    def _add_row_parallel(
        self,
        source: Activation,
        weights: PackedLinear,
        sums: PartialSums,
        module: str,
        *,
        accumulate: bool = False,
    ) -> None:
        """Adds a linear whose outputs the ranks add up.

        Args:
            module: Its canonical name; empty: adapters do not add to it.
        """
        program, site = self.program, None
        if module:
            site = program.shrink(source, weights, [MatrixPart(module, weights.columns)], overlaps=True)
        program.tile(source)
        program.linear(source, weights, sums.own, self._stream.width, accumulate=accumulate, site=site)
