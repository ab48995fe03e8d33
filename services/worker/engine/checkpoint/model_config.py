"""The shape of a model, and which of its heads each rank has; `model_families.py` reads it."""

from dataclasses import dataclass

from services.worker.engine.checkpoint.json_fields import ModelError
from services.worker.engine.checkpoint.rope_config import RopeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape of a decoder; sizes are of the whole model, not of one rank.

    Attributes:
        context_length: In tokens.
        windows: Per layer, how many last positions a token sees, itself included; 0 for all.
        qk_norm: Queries and keys are RMS-normalised over head_dim before the rotation.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    rope: RopeConfig
    norm_eps: float
    tied_embeddings: bool
    windows: tuple[int, ...]
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False

    def heads_of(self, rank: int, world: int) -> range:
        """The query heads of a rank."""
        width = self.num_heads // world
        return range(rank * width, (rank + 1) * width)

    def kv_heads_of(self, rank: int, world: int) -> range:
        """The KV heads of a rank: its share, or the one that its query heads need if ranks are more."""
        if world > self.num_kv_heads:
            head = rank * self.num_kv_heads // world
            return range(head, head + 1)
        width = self.num_kv_heads // world
        return range(rank * width, (rank + 1) * width)

    def check_split(self, world: int) -> None:
        """Refuses a number of ranks that the model cannot be split over.

        Raises:
            ModelError: The sentence names the numbers that are possible.
        """
        reason = self._obstacle(world)
        if reason is not None:
            fitting = [str(n) for n in range(1, self.num_heads + 1) if self._obstacle(n) is None]
            raise ModelError(f"tensor_parallel={world} {reason}; possible values: {', '.join(fitting)}")

    def _obstacle(self, world: int) -> str | None:
        if world < 1:
            return "is no number of ranks"
        sizes = {"num_attention_heads": self.num_heads, "intermediate_size": self.intermediate_size}
        for name, size in sizes.items():
            if size % world:
                return f"does not divide the model's {name}={size}"
        if self.num_kv_heads % world and world % self.num_kv_heads:
            return (
                f"neither divides the model's num_key_value_heads={self.num_kv_heads} nor is a multiple of it"
            )
        return None
