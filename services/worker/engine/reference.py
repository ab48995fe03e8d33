"""The oracle of the engine: one sequence, the whole weights, no batch, no cache, no ranks.

Deliberately slow and written apart from the fast path (own rotary embedding, own attention, repeated KV
heads), so that a mistake in one does not hide in the other. Tests compare; nothing serves from it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from services.worker.engine.config import ModelConfig
from services.worker.engine.weights import Checkpoint


class ReferenceDecoder:
    """A decoder that recomputes everything for every token."""

    def __init__(self, checkpoint: Checkpoint, config: ModelConfig) -> None:
        self.config = config
        self._read = checkpoint.read

    def logits(self, token_ids: list[int]) -> Tensor:
        """Logits after each token, [tokens, vocab]."""
        c = self.config
        table = self._read("model.embed_tokens.weight", (c.vocab_size, c.hidden_size))
        hidden = table[torch.tensor(token_ids)]
        for index in range(c.num_layers):
            name = f"model.layers.{index}"
            hidden = hidden + self._attention(self._norm(hidden, f"{name}.input_layernorm"), name)
            hidden = hidden + self._mlp(self._norm(hidden, f"{name}.post_attention_layernorm"), name)
        hidden = self._norm(hidden, "model.norm")
        if c.tied_embeddings:
            return hidden @ table.T
        return hidden @ self._read("lm_head.weight", (c.vocab_size, c.hidden_size)).T

    def generate(self, token_ids: list[int], count: int) -> list[int]:
        """The likeliest continuation, token by token."""
        tokens = list(token_ids)
        for _ in range(count):
            tokens.append(int(self.logits(tokens)[-1].argmax()))
        return tokens[len(token_ids) :]

    def _attention(self, hidden: Tensor, layer: str) -> Tensor:
        c, tokens = self.config, len(hidden)
        name, bias = f"{layer}.self_attn", c.attention_bias
        query_size, kv_size = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        # [heads, tokens, head_dim]
        queries, keys, values = (
            self._linear(hidden, f"{name}.{part}", size, c.hidden_size, bias)
            .view(tokens, -1, c.head_dim)
            .transpose(0, 1)
            for part, size in (("q_proj", query_size), ("k_proj", kv_size), ("v_proj", kv_size))
        )
        group = c.num_heads // c.num_kv_heads
        queries, keys = self._rotate(queries), self._rotate(keys).repeat_interleave(group, dim=0)
        scores = queries @ keys.transpose(1, 2) / c.head_dim**0.5
        scores = scores + torch.full((tokens, tokens), -torch.inf).triu(1)
        mixed = scores.softmax(-1) @ values.repeat_interleave(group, dim=0)
        flat = mixed.transpose(0, 1).reshape(tokens, query_size)
        return self._linear(flat, f"{name}.o_proj", c.hidden_size, query_size, bias)

    def _mlp(self, hidden: Tensor, layer: str) -> Tensor:
        c, name = self.config, f"{layer}.mlp"
        outer, inner, bias = c.hidden_size, c.intermediate_size, c.mlp_bias
        gate = F.silu(self._linear(hidden, f"{name}.gate_proj", inner, outer, bias))
        up = self._linear(hidden, f"{name}.up_proj", inner, outer, bias)
        return self._linear(gate * up, f"{name}.down_proj", outer, inner, bias)

    def _rotate(self, states: Tensor) -> Tensor:
        dim = self.config.head_dim
        frequencies = self.config.rope_theta ** (-torch.arange(0, dim, 2).float() / dim)
        angles = torch.outer(torch.arange(states.shape[1]).float(), frequencies)
        first, second = states[..., : dim // 2], states[..., dim // 2 :]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    def _norm(self, hidden: Tensor, name: str) -> Tensor:
        weight = self._read(f"{name}.weight", (self.config.hidden_size,))
        return hidden / torch.sqrt(hidden.pow(2).mean(-1, keepdim=True) + self.config.norm_eps) * weight

    def _linear(self, hidden: Tensor, name: str, out: int, into: int, bias: bool) -> Tensor:
        product = hidden @ self._read(f"{name}.weight", (out, into)).T
        return product + self._read(f"{name}.bias", (out,)) if bias else product
