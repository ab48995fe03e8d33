"""Loads this rank's heads of one layer's attention."""

import torch
from torch import Tensor

from services.worker.engine.checkpoint.layer_weights import AttentionWeights, LatentWeights, NormWeights
from services.worker.engine.checkpoint.weight_source import TensorRows, WeightSource
from services.worker.engine.config.layer import LatentConfig, NormConfig, QueryKeyNorm
from services.worker.engine.config.model import ModelConfig


def load_attention(
    source: WeightSource, config: ModelConfig, index: int, dtype: torch.dtype | None = torch.float32
) -> AttentionWeights:
    """The attention of a layer; `dtype` of the matrices, None for the stored one."""
    attention, name = config.layers[index].attention, f"model.layers.{index}.self_attn"
    own = config.heads_of(source.collectives.rank, source.collectives.world)
    value_dim = config.head_dim if attention.latent is None else attention.latent.value_dim
    columns = _rows(own, value_dim)
    norm, latent = attention.output_norm, attention.latent
    q_norm, k_norm = _query_key_norms(source, config, name, attention.qk_norm)
    qkv = None if latent else source.read_matrix_rows(_qkv(source, config, name, "weight"), dtype)
    qkv_bias = source.read_rows(_qkv(source, config, name, "bias")) if attention.qkv_bias else None
    return AttentionWeights(
        qkv=qkv,
        qkv_bias=qkv_bias,
        q_norm=q_norm,
        k_norm=k_norm,
        latent=_latent(source, name, latent, own, dtype) if latent else None,
        output=source.read_matrix(f"{name}.o_proj.weight", columns=columns, dtype=dtype),
        output_bias=source.load_replicated(f"{name}.o_proj.bias") if attention.output_bias else None,
        output_norm=source.load_norm_part(f"{name}.output_norm", norm, columns) if norm else None,
        sinks=source.read(f"{name}.sinks", _rows(own)) if attention.sinks else None,
    )


def _rows(heads: range, width: int = 1) -> slice:
    return slice(heads.start * width, heads.stop * width)


def _qkv(source: WeightSource, config: ModelConfig, name: str, suffix: str) -> list[TensorRows]:
    """This rank's query, key and value heads."""
    rank, world, dim = source.collectives.rank, source.collectives.world, config.head_dim
    queries, keys = _rows(config.heads_of(rank, world), dim), _rows(config.kv_heads_of(rank, world), dim)
    shared = world > config.num_kv_heads
    return [
        TensorRows(f"{name}.q_proj.{suffix}", queries),
        TensorRows(f"{name}.k_proj.{suffix}", keys, shared),
        TensorRows(f"{name}.v_proj.{suffix}", keys, shared),
    ]


def _query_key_norms(
    source: WeightSource, config: ModelConfig, name: str, norm: QueryKeyNorm | None
) -> tuple[NormWeights | None, NormWeights | None]:
    """The norms of queries and of keys."""
    if norm is None:
        return None, None
    rank, world = source.collectives.rank, source.collectives.world
    shared = world > config.num_kv_heads

    def load(part: str, own: range, total: int, shared: bool) -> NormWeights:
        module = f"{name}.{part}"
        if norm.scope == "head":
            return source.load_norm(module, norm.norm)
        if norm.scope == "all":
            return source.load_norm_part(module, norm.norm, _rows(own, config.head_dim), shared)
        # with weights of each head; all ranks load those that are shared
        heads = range(total) if shared else own
        each = {head: _head_norm(source, f"{module}.{head}", norm.norm, shared) for head in heads}
        biases = [each[head].bias for head in own]
        return NormWeights(
            weight=torch.stack([each[head].weight for head in own]),
            bias=torch.stack([bias for bias in biases if bias is not None]) if norm.norm.bias else None,
        )

    return (
        load("q_norm", config.heads_of(rank, world), config.num_heads, False),
        load("k_norm", config.kv_heads_of(rank, world), config.num_kv_heads, shared),
    )


def _head_norm(source: WeightSource, name: str, norm: NormConfig, shared: bool) -> NormWeights:
    return source.load_norm(name, norm) if shared else source.load_norm_part(name, norm, slice(None))


def _latent(
    source: WeightSource, name: str, latent: LatentConfig, own: range, dtype: torch.dtype | None
) -> LatentWeights:
    norm = NormConfig(eps=latent.eps)
    queries = _rows(own, latent.plain_dim + latent.rope_dim)

    def whole(module: str) -> Tensor:
        weight = source.load_replicated(f"{name}.{module}.weight")
        return weight.to(dtype or source.dtype_of(f"{name}.{module}.weight"))

    # keys and values of a head, one head after the other
    heads_kv = [
        TensorRows(f"{name}.{part}_b_proj.{head}.weight", slice(None)) for head in own for part in "kv"
    ]
    has_rank = latent.query_rank > 0
    query_a = whole("q_a_proj") if has_rank else None
    query_a_norm = source.load_norm(f"{name}.q_a_norm", norm) if has_rank else None
    query_b = f"{name}.q_b_proj.weight" if has_rank else f"{name}.q_proj.weight"
    return LatentWeights(
        query_a=query_a,
        query_a_norm=query_a_norm,
        query_b=source.read(query_b, queries, dtype=dtype),
        kv_a=whole("kv_a_proj"),
        kv_a_norm=source.load_norm(f"{name}.kv_a_norm", norm),
        kv_b=source.read_rows(heads_kv, dtype),
    )
