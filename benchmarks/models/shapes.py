"""The shapes of models that `ryz bench make-model` makes: sizes only, and the tensors that follow."""

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.lib.measuring import BenchError


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a Llama-style decoder; `tied` shares the embedding with the output layer."""

    dim: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    context: int = 2048
    tied: bool = False

    @property
    def head_dim(self) -> int:
        """Numbers per head."""
        return self.dim // self.heads

    def check(self) -> None:
        """Check that the sizes fit each other.

        Raises:
            BenchError: They do not; the text names the option and what it may be.
        """
        least = 256 + 5  # the bytes and the special tokens
        for name in ("dim", "layers", "heads", "kv_heads", "ffn", "context"):
            if getattr(self, name) < 1:
                raise BenchError(
                    f"--{name.replace('_', '-')} must be a positive number, got {getattr(self, name)}"
                )
        if self.dim % self.heads or self.head_dim % 2:
            raise BenchError(
                f"--dim {self.dim} over --heads {self.heads} gives no even head size; "
                "take a dim that is an even multiple of the heads"
            )
        if self.heads % self.kv_heads:
            raise BenchError(
                f"--kv-heads {self.kv_heads} does not divide --heads {self.heads}; take a divisor of it"
            )
        if self.vocab < least:
            raise BenchError(
                f"--vocab {self.vocab} is too small: the bytes and special tokens of a tokenizer are {least}"
            )

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield name and shape of each tensor, in the order in which they are written."""
        kv = self.kv_heads * self.head_dim
        yield "model.embed_tokens.weight", (self.vocab, self.dim)
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}"
            yield f"{prefix}.input_layernorm.weight", (self.dim,)
            yield f"{prefix}.self_attn.q_proj.weight", (self.dim, self.dim)
            yield f"{prefix}.self_attn.k_proj.weight", (kv, self.dim)
            yield f"{prefix}.self_attn.v_proj.weight", (kv, self.dim)
            yield f"{prefix}.self_attn.o_proj.weight", (self.dim, self.dim)
            yield f"{prefix}.post_attention_layernorm.weight", (self.dim,)
            yield f"{prefix}.mlp.gate_proj.weight", (self.ffn, self.dim)
            yield f"{prefix}.mlp.up_proj.weight", (self.ffn, self.dim)
            yield f"{prefix}.mlp.down_proj.weight", (self.dim, self.ffn)
        yield "model.norm.weight", (self.dim,)
        if not self.tied:
            yield "lm_head.weight", (self.vocab, self.dim)


BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
SHAPES = {
    "tiny": ModelShape(dim=64, layers=2, heads=4, kv_heads=2, ffn=160, vocab=512, context=512, tied=True),
    "15m": ModelShape(dim=288, layers=6, heads=6, kv_heads=6, ffn=768, vocab=32000, context=1024, tied=True),
    "110m": ModelShape(
        dim=768, layers=12, heads=12, kv_heads=12, ffn=2048, vocab=32000, context=2048, tied=True
    ),
    "1.1b": ModelShape(dim=2048, layers=22, heads=32, kv_heads=4, ffn=5632, vocab=32000, context=2048),
}
