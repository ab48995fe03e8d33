"""Decides which slice of each weight a rank holds, and loads it.

The functions return plain tensors, for any implementation of the layers. Each byte of the files is read at
most once per group: a slice by its rank; tensors that every rank needs (norms, biases of row-parallel layers,
keys and values if there are more ranks than KV heads) by rank 0, which shares them by an all-reduce. So all
ranks call the same functions in the same order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from services.worker.engine.checkpoint.layer_weights import (
    AttentionWeights,
    LayerWeights,
    MlpWeights,
    NormWeights,
)
from services.worker.engine.checkpoint.rank_shares import share_of_mlp, share_of_vocabulary
from services.worker.engine.checkpoint.slice_reader import dtype_of
from services.worker.engine.checkpoint.weight_files import Checkpoint
from services.worker.engine.collectives.base import Collectives
from services.worker.engine.config.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class WeightSource:
    """The weight files, and the collectives, whose rank and world say which slices to read."""

    checkpoint: Checkpoint
    collectives: Collectives

    def own_part(self, size: int) -> slice:
        """This rank's part of the MLP's inner columns; ranks' parts may differ by a unit."""
        return _slice(share_of_mlp(size, self.collectives.rank, self.collectives.world))

    def own_token_ids(self, vocab_size: int) -> slice:
        """This rank's token ids: equal ranges, the last ones cut at the end of the vocabulary."""
        return _slice(share_of_vocabulary(vocab_size, self.collectives.rank, self.collectives.world))

    def load_replicated(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor that every rank needs, fp32: read by rank 0, then summed with zeros of the others."""
        self.checkpoint.table.find(name, shape)  # on all ranks, so that all raise
        tensor = (
            self.checkpoint.read_tensor(name, shape) if self.collectives.rank == 0 else torch.zeros(shape)
        )
        self.collectives.all_reduce_sum(tensor)
        return tensor


@dataclass(frozen=True, slots=True)
class TensorRows:
    """Some rows of a tensor, as a part of a fused one.

    Attributes:
        name: Of the tensor.
        shape: Of the whole tensor.
        rows: To be read.
        shared: Read by rank 0 for all.
    """

    name: str
    shape: tuple[int, ...]
    rows: slice
    shared: bool = False


def open_source(checkpoint: Checkpoint, config: ModelConfig, collectives: Collectives) -> WeightSource:
    """Checks, before anything is read, that the model can be split and that files and config agree.

    Raises:
        ModelError: They do not: a tensor is missing, misshapen, of an unknown type, or superfluous.
    """
    config.check_split(collectives.world)
    checkpoint.table.check(config)
    return WeightSource(checkpoint, collectives)


def load_layer(
    source: WeightSource, config: ModelConfig, index: int, dtype: torch.dtype | None = torch.float32
) -> LayerWeights:
    """Loads one layer of this rank; `dtype` of the matrices, None for the stored one."""
    name, hidden = f"model.layers.{index}", config.hidden_size
    attention, mlp = f"{name}.self_attn", f"{name}.mlp"
    shape, qk_norm = config.layers[index].dense_mlp, config.layers[index].attention.qk_norm
    inner = shape.inner
    qkv, qkv_bias = load_qkv(source, index, config, dtype)
    output, output_bias = load_output(source, index, config, dtype)
    parts = [(f"{mlp}.gate_proj", inner), (f"{mlp}.up_proj", inner)]
    gate_up, gate_up_bias = load_rows(source, parts, hidden, shape.bias, dtype)
    down, down_bias = load_columns(
        source,
        f"{mlp}.down_proj",
        (hidden, inner),
        source.own_part(inner),
        bias=shape.down_bias,
        dtype=dtype,
    )
    head = config.head_dim
    return LayerWeights(
        input_norm=load_norm(source, f"{name}.input_layernorm", hidden),
        attention=AttentionWeights(
            qkv=qkv,
            qkv_bias=qkv_bias,
            q_norm=load_norm(source, f"{attention}.q_norm", head) if qk_norm else None,
            k_norm=load_norm(source, f"{attention}.k_norm", head) if qk_norm else None,
            output=output,
            output_bias=output_bias,
        ),
        mlp_norm=load_norm(source, f"{name}.post_attention_layernorm", hidden),
        mlp=MlpWeights(gate_up=gate_up, gate_up_bias=gate_up_bias, down=down, down_bias=down_bias),
    )


def load_norm(source: WeightSource, name: str, size: int) -> NormWeights:
    """A norm, the same on all ranks."""
    return NormWeights(weight=source.load_replicated(f"{name}.weight", (size,)))


def load_qkv(
    source: WeightSource, index: int, config: ModelConfig, dtype: torch.dtype | None = torch.float32
) -> tuple[Tensor, Tensor | None]:
    """This rank's query, key and value heads of a layer, fused: weight and bias."""
    name, bias = f"model.layers.{index}.self_attn", config.layers[index].attention.qkv_bias
    rank, world, dim = source.collectives.rank, source.collectives.world, config.head_dim
    replicated = world > config.num_kv_heads
    heads, kv_heads = config.heads_of(rank, world), config.kv_heads_of(rank, world)
    parts = (
        ("q_proj", config.num_heads, heads, False),
        ("k_proj", config.num_kv_heads, kv_heads, replicated),
        ("v_proj", config.num_kv_heads, kv_heads, replicated),
    )

    def rows_of(suffix: str, *width: int) -> list[TensorRows]:
        return [
            TensorRows(
                f"{name}.{part}.{suffix}",
                (total * dim, *width),
                slice(own.start * dim, own.stop * dim),
                shared,
            )
            for part, total, own, shared in parts
        ]

    weight = _stack(source, rows_of("weight", config.hidden_size), dtype)
    return weight, _stack(source, rows_of("bias"), torch.float32) if bias else None


def load_output(
    source: WeightSource, index: int, config: ModelConfig, dtype: torch.dtype | None = torch.float32
) -> tuple[Tensor, Tensor | None]:
    """The columns of a layer's output matrix for this rank's query heads, and the whole bias."""
    name, bias = f"model.layers.{index}.self_attn.o_proj", config.layers[index].attention.output_bias
    own = config.heads_of(source.collectives.rank, source.collectives.world)
    shape = (config.hidden_size, config.num_heads * config.head_dim)
    columns = slice(own.start * config.head_dim, own.stop * config.head_dim)
    return load_columns(source, name, shape, columns, bias=bias, dtype=dtype)


def load_rows(
    source: WeightSource,
    parts: Sequence[tuple[str, int]],
    in_features: int,
    bias: bool,
    dtype: torch.dtype | None = torch.float32,
) -> tuple[Tensor, Tensor | None]:
    """Column-parallel: this rank's rows of each part (a module's name and its output features), fused."""
    weights = [
        TensorRows(f"{name}.weight", (size, in_features), source.own_part(size)) for name, size in parts
    ]
    biases = [TensorRows(f"{name}.bias", (size,), source.own_part(size)) for name, size in parts]
    return _stack(source, weights, dtype), _stack(source, biases, torch.float32) if bias else None


def load_columns(
    source: WeightSource,
    name: str,
    shape: tuple[int, int],
    columns: slice,
    *,
    bias: bool,
    dtype: torch.dtype | None = torch.float32,
) -> tuple[Tensor, Tensor | None]:
    """Row-parallel: these columns of a module's matrix (whole shape: [out, in]) and the whole bias."""
    weight = source.checkpoint.read_tensor(f"{name}.weight", shape, columns=columns, dtype=dtype)
    return weight, source.load_replicated(f"{name}.bias", shape[:1]) if bias else None


def load_embedding(
    source: WeightSource, config: ModelConfig, dtype: torch.dtype | None = torch.float32
) -> Tensor:
    """This rank's rows of the embedding table (`WeightSource.own_token_ids`), [ids of this rank, hidden]."""
    shape = (config.vocab_size, config.hidden_size)
    rows = source.own_token_ids(config.vocab_size)
    return source.checkpoint.read_tensor("model.embed_tokens.weight", shape, rows=rows, dtype=dtype)


def load_head(source: WeightSource, config: ModelConfig, dtype: torch.dtype | None = torch.float32) -> Tensor:
    """This rank's rows of the output matrix, as `load_embedding`; for models that do not tie the two."""
    shape = (config.vocab_size, config.hidden_size)
    rows = source.own_token_ids(config.vocab_size)
    return source.checkpoint.read_tensor("lm_head.weight", shape, rows=rows, dtype=dtype)


def load_head_bias(source: WeightSource, config: ModelConfig) -> Tensor | None:
    """The head's bias for this rank's token ids, fp32 [ids of this rank]; None if there is none."""
    if not config.head_bias:
        return None
    whole = source.load_replicated("lm_head.bias", (config.vocab_size,))
    return whole[source.own_token_ids(config.vocab_size)].clone()


def load_positions(source: WeightSource, config: ModelConfig) -> Tensor | None:
    """The table of learned positions, fp32 [positions, hidden], on every rank; None if there is none."""
    if not config.learned_positions:
        return None
    return source.load_replicated("model.positions.weight", (config.learned_positions, config.hidden_size))


def load_final_norm(source: WeightSource, config: ModelConfig) -> NormWeights:
    """The norm before the head, [hidden], fp32."""
    return load_norm(source, "model.norm", config.hidden_size)


def _slice(share: range) -> slice:
    return slice(share.start, share.stop)


def _stack(source: WeightSource, parts: Sequence[TensorRows], dtype: torch.dtype | None) -> Tensor:
    """Reads rows of several tensors into one; without a dtype, of a type that holds all of them exactly."""
    stored = [dtype_of(source.checkpoint.table.find(part.name, part.shape)) for part in parts]
    counts = [len(range(part.shape[0])[part.rows]) for part in parts]
    fused = torch.empty(
        (sum(counts), *parts[0].shape[1:]), dtype=dtype or reduce(torch.promote_types, stored)
    )
    begin = 0
    for part, count in zip(parts, counts, strict=True):
        out = fused[begin : begin + count]
        if part.shared:
            out.copy_(source.load_replicated(part.name, part.shape)[part.rows])
        else:
            source.checkpoint.read_into(out, part.name, part.shape, part.rows)
        begin += count
    return fused
