"""The shapes of models that `ryz bench make-model` makes: sizes only, and the tensors that follow."""

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.lib.measuring import BenchError


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a Llama-style decoder; `tied` shares the embedding with the output layer.

    With `experts` it is like Mixtral: `ffn` is the width of each expert, and a token takes `chosen` of them.
    """

    dim: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    context: int = 2048
    tied: bool = False
    experts: int = 0
    chosen: int = 0

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
        if self.experts < 0 or not min(self.experts, 1) <= self.chosen <= self.experts:
            raise BenchError(
                f"--chosen {self.chosen} of --experts {self.experts}: take at least one expert, and no "
                "more than there are"
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
            yield from self._mlp_tensors(prefix)
        yield "model.norm.weight", (self.dim,)
        if not self.tied:
            yield "lm_head.weight", (self.vocab, self.dim)

    def _mlp_tensors(self, prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        wide, narrow = (self.ffn, self.dim), (self.dim, self.ffn)
        if not self.experts:
            for part, size in (("gate_proj", wide), ("up_proj", wide), ("down_proj", narrow)):
                yield f"{prefix}.mlp.{part}.weight", size
            return
        yield f"{prefix}.block_sparse_moe.gate.weight", (self.experts, self.dim)
        for expert in range(self.experts):
            for part, size in (("w1", wide), ("w3", wide), ("w2", narrow)):
                yield f"{prefix}.block_sparse_moe.experts.{expert}.{part}.weight", size


BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
SHAPES = {
    "tiny": ModelShape(dim=64, layers=2, heads=4, kv_heads=2, ffn=160, vocab=512, context=512, tied=True),
    "15m": ModelShape(dim=288, layers=6, heads=6, kv_heads=6, ffn=768, vocab=32000, context=1024, tied=True),
    "110m": ModelShape(
        dim=768, layers=12, heads=12, kv_heads=12, ffn=2048, vocab=32000, context=2048, tied=True
    ),
    # as many parameters at work for a token as in 110m
    "110m-moe": ModelShape(
        dim=768,
        layers=12,
        heads=12,
        kv_heads=12,
        ffn=1024,
        vocab=32000,
        context=2048,
        tied=True,
        experts=16,
        chosen=2,
    ),
    "1.1b": ModelShape(dim=2048, layers=22, heads=32, kv_heads=4, ffn=5632, vocab=32000, context=2048),
}
