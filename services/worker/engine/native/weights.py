"""This rank's weights, packed for the kernels matrix by matrix as they are read."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from services.worker.engine.checkpoint.codes.encoded_matrix import EncodedMatrix, Matrix
from services.worker.engine.checkpoint.rank_shares import vocabulary_width
from services.worker.engine.checkpoint.weight_loader import (
    WeightSource,
    load_embedding,
    load_final_norm,
    load_head,
    load_head_bias,
    load_positions,
)
from services.worker.engine.config.model import ModelConfig
from services.worker.engine.native.layers.packed_layer import NativeLayer, pack_layer
from services.worker.engine.native.layers.packed_norm import PackedNorm, pack_norm
from services.worker.engine.native.library import KernelLibrary
from services.worker.engine.native.operands import InputKinds
from services.worker.engine.native.packed_weights import (
    STORED_TYPES,
    EmbeddingTable,
    PackedLinear,
    buffer,
    pack,
    padded,
)
from services.worker.engine.native.structs.rows import ActivationKind, OutputRule
from services.worker.engine.native.structs.weights import WeightType
from services.worker.rank_protocol.run_config import Precision


@dataclass(frozen=True, slots=True)
class NativeWeights:
    """All weights of a rank.

    Attributes:
        embedding: Of this rank's token ids.
        positions: Learned ones, [positions, padded hidden]; or None.
        head: Of the same ids, padded to the widest rank's.
        input_kinds: In which forms linears read their inputs.
    """

    embedding: EmbeddingTable
    positions: Tensor | None
    layers: list[NativeLayer]
    norm: PackedNorm
    head: PackedLinear
    input_kinds: InputKinds

    @classmethod
    def load(
        cls,
        source: WeightSource,
        config: ModelConfig,
        kernels: KernelLibrary,
        precision: Precision = "fp32",
    ) -> "NativeWeights":
        """Reads and packs this rank's share.

        Args:
            precision: Of the matrices; the embedding stays as stored. With `codes` those that are stored as
                codes are packed as codes, without loss, and others as stored.

        Raises:
            ModelError: A tensor cannot be read.
        """
        source = replace(source, codes=precision == "codes")
        dtype = torch.float32 if precision == "int8" else None
        layers = [
            pack_layer(source, config, index, kernels, precision=precision)
            for index in range(config.num_layers)
        ]
        embedding = load_embedding(source, config, None)
        matrix = embedding if config.tied_embeddings else load_head(source, config, dtype)
        missing = vocabulary_width(config.vocab_size, source.collectives.world) - matrix.shape[0]
        head = pack(
            kernels,
            _with_zeros(matrix, missing),
            _head_bias(source, config, missing),
            precision=precision,
            rule=_rule(config),
        )
        norm = pack_norm(config.final_norm, load_final_norm(source, config))
        assert norm is not None
        stored: Tensor | PackedLinear
        if isinstance(embedding, EncodedMatrix):
            stored = head if config.tied_embeddings else pack(kernels, embedding, precision="codes")
        else:
            stored = embedding
        first_id = source.own_token_ids(config.vocab_size).start
        return cls(
            embedding=EmbeddingTable(stored, first_id, *embedding.shape),
            positions=_padded_rows(load_positions(source, config)),
            layers=layers,
            norm=norm,
            head=head,
            input_kinds=_input_kinds([head, *(linear for layer in layers for linear in layer.linears)]),
        )


def _input_kinds(linears: Iterable[PackedLinear]) -> InputKinds:
    types = {linear.type for linear in linears}
    return InputKinds(
        floats=bool(types & set(STORED_TYPES.values())),
        pairs=WeightType.BF16_PAIRS in types,
        int8=WeightType.INT8 in types,
        codes=WeightType.CODES in types,
    )


def _with_zeros(matrix: Matrix, missing: int) -> Matrix:
    """The matrix with so many outputs more, which are zeros."""
    if not missing:
        return matrix
    if isinstance(matrix, EncodedMatrix):
        sides = matrix.codes, matrix.scales, matrix.offsets
        codes, scales, offsets = (None if side is None else F.pad(side, (0, 0, 0, missing)) for side in sides)
        assert codes is not None
        assert scales is not None
        return replace(matrix, codes=codes, scales=scales, offsets=offsets)
    return torch.cat((matrix, matrix.new_zeros(missing, matrix.shape[1])))


def _head_bias(source: WeightSource, config: ModelConfig, missing: int) -> Tensor | None:
    bias = load_head_bias(source, config)
    return None if bias is None else F.pad(bias, (0, missing))


def _rule(config: ModelConfig) -> OutputRule:
    """What becomes of the logits."""
    if config.logit_scale == 1.0 and not config.logit_softcap:
        return OutputRule()
    return OutputRule(
        activation=ActivationKind.CAPPED, scale=config.logit_scale, softcap=config.logit_softcap
    )


def _padded_rows(table: Tensor | None) -> Tensor | None:
    if table is None:
        return None
    rows = buffer(table.shape[0], padded(table.shape[1]))
    rows[:, : table.shape[1]] = table
    return rows
