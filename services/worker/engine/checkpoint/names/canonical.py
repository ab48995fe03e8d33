"""The tensors that a config demands, under canonical names; it imports no torch.

The names are those of Hugging Face's Llama, with names of our own for norms, experts and latent attention,
because families use the same word for different norms. Loader and sizes know no other names.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from services.worker.engine.config.layer import (
    AttentionConfig,
    ExpertsConfig,
    LayerConfig,
    MlpConfig,
    NormConfig,
)
from services.worker.engine.config.model import ModelConfig


@dataclass(frozen=True, slots=True)
class CanonicalTensor:
    """A tensor that a model has.

    Attributes:
        module: Without the layer; `{}` stands for the number of an expert or head.
        suffix: `weight`, `bias`, or nothing.
        shape: Of one or two dimensions.
        layer: Its number; -1: it belongs to no layer.
        item: The number of its expert or head, if the module has them.
    """

    module: str
    suffix: str
    shape: tuple[int, ...]
    layer: int = -1
    item: int = -1

    @property
    def name(self) -> str:
        """The whole name."""
        return canonical_name(self.module, self.suffix, self.layer, self.item)


def canonical_name(module: str, suffix: str, layer: int = -1, item: int = -1) -> str:
    """The whole name of a tensor."""
    prefix = f"model.layers.{layer}." if layer >= 0 else ""
    return f"{prefix}{module.format(item)}{'.' if suffix else ''}{suffix}"


def canonical_tensors(config: ModelConfig) -> Iterator[CanonicalTensor]:
    """All tensors of a model."""
    c = config
    yield CanonicalTensor("model.embed_tokens", "weight", (c.vocab_size, c.hidden_size))
    if c.learned_positions:
        yield CanonicalTensor("model.positions", "weight", (c.learned_positions, c.hidden_size))
    for index, layer in enumerate(c.layers):
        for module, suffix, shape, item in _layer(c, layer):
            yield CanonicalTensor(module, suffix, shape, index, item)
    for module, suffix, shape, _ in _norm("model.norm", c.final_norm, c.hidden_size):
        yield CanonicalTensor(module, suffix, shape)
    if not c.tied_embeddings:
        yield CanonicalTensor("lm_head", "weight", (c.vocab_size, c.hidden_size))
    if c.head_bias:
        yield CanonicalTensor("lm_head", "bias", (c.vocab_size,))


_Part = tuple[str, str, tuple[int, ...], int]  # module, suffix, shape, item


def _layer(config: ModelConfig, layer: LayerConfig) -> Iterator[_Part]:
    hidden = config.hidden_size
    for name, norm in (
        ("input_norm", layer.input_norm),
        ("post_attention_norm", layer.post_attention_norm),
        ("mlp_norm", layer.mlp_norm),
        ("post_mlp_norm", layer.post_mlp_norm),
    ):
        yield from _norm(name, norm, hidden)
    if layer.attention.latent is None:
        yield from _attention(config, layer.attention)
    else:
        yield from _latent(config, layer.attention)
    if isinstance(layer.mlp, ExpertsConfig):
        yield from _experts(hidden, layer.mlp)
    else:
        yield from _mlp("mlp", hidden, layer.mlp)


def _attention(config: ModelConfig, attention: AttentionConfig) -> Iterator[_Part]:
    hidden, dim = config.hidden_size, config.head_dim
    queries, keys = config.num_heads * dim, config.num_kv_heads * dim
    for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
        yield from _linear(f"self_attn.{name}", rows, hidden, attention.qkv_bias)
    yield from _linear("self_attn.o_proj", hidden, queries, attention.output_bias)
    if attention.qk_norm is not None:
        norm, scope = attention.qk_norm.norm, attention.qk_norm.scope
        for name, heads in (("q_norm", config.num_heads), ("k_norm", config.num_kv_heads)):
            if scope == "heads":
                for head in range(heads):
                    yield from _norm(f"self_attn.{name}.{{}}", norm, dim, head)
            else:
                yield from _norm(f"self_attn.{name}", norm, dim if scope == "head" else heads * dim)
    if attention.sinks:
        yield "self_attn.sinks", "", (config.num_heads,), -1
    yield from _norm("self_attn.output_norm", attention.output_norm, queries)


def _latent(config: ModelConfig, attention: AttentionConfig) -> Iterator[_Part]:
    latent, hidden, heads = attention.latent, config.hidden_size, config.num_heads
    assert latent is not None
    norm, queries = NormConfig(eps=latent.eps), heads * (latent.plain_dim + latent.rope_dim)
    if latent.query_rank:
        yield from _linear("self_attn.q_a_proj", latent.query_rank, hidden)
        yield from _norm("self_attn.q_a_norm", norm, latent.query_rank)
        yield from _linear("self_attn.q_b_proj", queries, latent.query_rank)
    else:
        yield from _linear("self_attn.q_proj", queries, hidden)
    yield from _linear("self_attn.kv_a_proj", latent.rank + latent.rope_dim, hidden)
    yield from _norm("self_attn.kv_a_norm", norm, latent.rank)
    for head in range(heads):
        yield from _linear("self_attn.k_b_proj.{}", latent.plain_dim, latent.rank, item=head)
        yield from _linear("self_attn.v_b_proj.{}", latent.value_dim, latent.rank, item=head)
    yield from _linear("self_attn.o_proj", hidden, heads * latent.value_dim, attention.output_bias)


def _experts(hidden: int, experts: ExpertsConfig) -> Iterator[_Part]:
    yield from _linear("mlp.router", experts.count, hidden, experts.router_bias)
    if experts.selection_bias:
        yield "mlp.router.selection_bias", "", (experts.count,), -1
    for expert in range(experts.count):
        yield from _mlp("mlp.experts.{}", hidden, experts.expert, expert)
    if experts.shared is not None:
        yield from _mlp("mlp.shared", hidden, experts.shared)
    if experts.shared_gate:
        yield from _linear("mlp.shared_gate", 1, hidden)


def _mlp(name: str, hidden: int, mlp: MlpConfig, item: int = -1) -> Iterator[_Part]:
    if mlp.gated:
        yield from _linear(f"{name}.gate_proj", mlp.inner, hidden, mlp.bias, item)
    yield from _linear(f"{name}.up_proj", mlp.inner, hidden, mlp.bias, item)
    yield from _linear(f"{name}.down_proj", hidden, mlp.inner, mlp.down_bias, item)
    yield from _norm(f"{name}.inner_norm", mlp.inner_norm, mlp.inner)


def _linear(module: str, rows: int, columns: int, bias: bool = False, item: int = -1) -> Iterator[_Part]:
    yield module, "weight", (rows, columns), item
    if bias:
        yield module, "bias", (rows,), item


def _norm(module: str, norm: NormConfig | None, size: int, item: int = -1) -> Iterator[_Part]:
    if norm is not None:
        yield module, "weight", (size,), item
        if norm.bias:
            yield module, "bias", (size,), item
