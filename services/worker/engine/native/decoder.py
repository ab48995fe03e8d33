"""The decoder of `plain/model.py` as a program of kernels: the same layers, one op after another.

With several ranks, the embedding and the row-parallel linears write partial sums. A rank barrier makes them
visible, and the residual op that follows adds them in the order of ranks and makes the next norm.
"""

from torch import Tensor

from services.worker.engine.config.model_config import ModelConfig
from services.worker.engine.native.all_reduce_buffers import AllReduceBuffers
from services.worker.engine.native.native_cache import HeadShape, NativeCache, NativeLayerCache
from services.worker.engine.native.native_weights import NativeLayer, NativeWeights
from services.worker.engine.native.operands import (
    MAX_ROWS,
    Activation,
    PartialSums,
    QueryKeyInputs,
    ResidualStream,
)
from services.worker.engine.native.packed_weights import PackedLinear, buffer, padded
from services.worker.engine.native.program import Program


class NativeDecoder:
    """The program of one rank, and its buffers.

    Args:
        config: The whole model's shape.
        weights: This rank's.
        heads: This rank's.
        cache: Where keys and values go.
        rotation: Cosines and sines by position, [positions, head_dim / 2] each.
        buffers: Where the ranks' partial sums and logits are combined.

    Attributes:
        program: The ops.
        sampled_rows: After a pass the sampled rows behind the last norm, [MAX_ROWS, padded hidden].
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: NativeWeights,
        *,
        heads: HeadShape,
        cache: NativeCache,
        rotation: tuple[Tensor, Tensor],
        buffers: AllReduceBuffers,
    ) -> None:
        self._norm_eps, self._heads, self._rotation, self._buffers = (
            config.final_norm.eps,
            heads,
            rotation,
            buffers,
        )
        self._normed = Activation.allocate(config.hidden_size, weights.quantized)
        self._stream = ResidualStream(
            hidden=buffer(MAX_ROWS, padded(config.hidden_size)),
            columns=config.hidden_size,
            eps=config.final_norm.eps,
            normed=self._normed,
        )
        self._qkv = buffer(MAX_ROWS, padded((heads.heads + 2 * heads.kv_heads) * heads.dim))
        self._mixed = Activation.allocate(heads.heads * heads.dim, weights.quantized)
        self._gated = Activation.allocate(weights.layers[0].gate_up.columns, weights.quantized)
        self.program = Program()
        self.sampled_rows = self._normed.rows
        self._add_embedding(weights)
        # each layer ends with the norm that the next one, or the head, reads
        norms = [layer.attention_norm for layer in weights.layers[1:]] + [weights.norm]
        for index, layer in enumerate(weights.layers):
            self._add_attention(layer, cache.layers[index], config.windows[index])
            self._add_mlp(layer, norms[index], sampled=index == config.num_layers - 1)
        self.program.begin_head()
        self.program.linear(
            self._normed, weights.head, buffers.own_logits, buffers.logits.shape[1], sampled=True
        )
        if buffers.barrier is not None:
            self.program.rank_barrier()

    def _add_embedding(self, weights: NativeWeights) -> None:
        sums = self._buffers.embedding
        self.program.embed(weights.embedding, weights.first_id, sums.own, self._stream.width)
        self.program.rank_barrier()
        self.program.residual(self._stream, sums, None, weights.layers[0].attention_norm, assign=True)

    def _add_attention(self, layer: NativeLayer, cache: NativeLayerCache, window: int) -> None:
        inputs = QueryKeyInputs(*self._rotation, norms=layer.qk_norms, eps=self._norm_eps)
        self.program.linear(self._normed, layer.qkv, self._qkv.data_ptr(), self._qkv.shape[1])
        self.program.attention(
            self._heads, cache, window=window, inputs=inputs, qkv=self._qkv, out=self._mixed
        )
        self._add_row_parallel(self._mixed, layer.output, self._buffers.attention)
        self.program.residual(self._stream, self._buffers.attention, layer.output_bias, layer.mlp_norm)

    def _add_mlp(self, layer: NativeLayer, next_norm: Tensor, *, sampled: bool) -> None:
        self.program.linear(self._normed, layer.gate_up, self._gated.rows.data_ptr(), self._gated.width)
        self._add_row_parallel(self._gated, layer.down, self._buffers.mlp)
        self.program.residual(self._stream, self._buffers.mlp, layer.down_bias, next_norm, sampled=sampled)

    def _add_row_parallel(self, source: Activation, weights: PackedLinear, sums: PartialSums) -> None:
        self.program.tile(source)
        self.program.linear(source, weights, sums.own, self._stream.width)
        self.program.rank_barrier()
