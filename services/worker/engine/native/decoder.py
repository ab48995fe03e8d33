"""The decoder of `model.py` as a program of kernels: the same layers, one op after another.

Between ranks the embedding and the row-parallel linears write their share into `Parts`, an exchange makes the
shares visible, and the residual op that follows adds them in the order of ranks and makes the next norm.
"""

from torch import Tensor

from services.worker.engine.checkpoint.model_config import ModelConfig
from services.worker.engine.native.all_reduce_buffers import Meeting
from services.worker.engine.native.library import Flag, WeightType
from services.worker.engine.native.native_cache import LayerCache, NativeCache
from services.worker.engine.native.native_weights import NativeLayer, NativeWeights
from services.worker.engine.native.packed_weights import STORED_TYPES, buffer, padded
from services.worker.engine.native.program import MAX_ROWS, Activation, HeadShape, Parts, Program


class NativeDecoder:
    """The program of this rank's share, and its buffers.

    Args:
        config: The whole model's shape.
        weights: This rank's.
        heads: This rank's.
        cache: Where keys and values go.
        rotation: Cosines and sines by position, [positions, head_dim / 2] each.
        meeting: Where the ranks' shares and logits come together.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: NativeWeights,
        *,
        heads: HeadShape,
        cache: NativeCache,
        rotation: tuple[Tensor, Tensor],
        meeting: Meeting,
    ) -> None:
        self._config, self._heads, self._rotation, self._shares = config, heads, rotation, meeting.shares
        self.hidden = buffer(MAX_ROWS, padded(config.hidden_size))
        self._normed = Activation.make(config.hidden_size, weights.quantized)
        self._qkv = buffer(MAX_ROWS, padded((heads.heads + 2 * heads.kv_heads) * heads.dim))
        self._mixed = Activation.make(heads.heads * heads.dim, weights.quantized)
        self._gated = Activation.make(weights.layers[0].gate_up.columns, weights.quantized)
        self.program = program = Program()
        self._embed(program, weights)
        # each layer ends with the norm that the next one, or the head, reads
        norms = [layer.attention_norm for layer in weights.layers[1:]] + [weights.norm]
        for index, layer in enumerate(weights.layers):
            self._attention(program, layer, cache.layers[index], config.windows[index])
            flags = Flag.SAMPLED if index == config.num_layers - 1 else Flag.NONE
            self._mlp(program, layer, norms[index], flags)
        program.linear(
            self._normed, weights.head, meeting.own_logits, meeting.logits.shape[1], flags=Flag.SAMPLED
        )
        if meeting.exchange is not None:
            program.exchange()

    def _embed(self, program: Program, weights: NativeWeights) -> None:
        shares, table = self._shares.embedding, weights.embedding
        kind: WeightType = STORED_TYPES[table.dtype]
        program.embed(table, kind, weights.first_id, shares.own, self.hidden.shape[1])
        program.exchange()
        self._residual(program, shares, None, weights.layers[0].attention_norm, Flag.ASSIGN)

    def _attention(self, program: Program, layer: NativeLayer, cache: LayerCache, window: int) -> None:
        width = self.hidden.shape[1]
        program.linear(self._normed, layer.qkv, self._qkv.data_ptr(), self._qkv.shape[1])
        program.attention(
            self._qkv,
            self._heads,
            (cache.keys, cache.values),
            cold=None if cache.cold is None else cache.cold.pointers,
            rotation=self._rotation,
            norms=layer.qk_norms,
            eps=self._config.norm_eps,
            window=window,
            out=self._mixed,
        )
        program.prepare(self._mixed)
        program.linear(self._mixed, layer.output, self._shares.attention.own, width)
        program.exchange()
        self._residual(program, self._shares.attention, layer.output_bias, layer.mlp_norm)

    def _mlp(self, program: Program, layer: NativeLayer, next_norm: Tensor, flags: Flag) -> None:
        width = self.hidden.shape[1]
        program.linear(self._normed, layer.gate_up, self._gated.rows.data_ptr(), self._gated.width)
        program.prepare(self._gated)
        program.linear(self._gated, layer.down, self._shares.mlp.own, width)
        program.exchange()
        self._residual(program, self._shares.mlp, layer.down_bias, next_norm, flags)

    def _residual(
        self, program: Program, parts: Parts, bias: Tensor | None, norm: Tensor, flags: Flag = Flag.NONE
    ) -> None:
        program.residual(
            self.hidden,
            self._config.hidden_size,
            parts,
            bias=bias,
            norm=norm,
            eps=self._config.norm_eps,
            out=self._normed,
            flags=flags,
        )
