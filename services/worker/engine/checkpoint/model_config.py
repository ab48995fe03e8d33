"""The shape of a model, and which of its heads each rank has; `model_families.py` reads it."""

from dataclasses import dataclass

from services.worker.engine.checkpoint.json_fields import ModelError
from services.worker.engine.checkpoint.rank_shares import share_of_heads
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
        """The query heads of a rank: those of its KV heads, or a part of one KV head's if ranks are more."""
        if world > self.num_kv_heads:
            width = self.num_heads // world
            return range(rank * width, (rank + 1) * width)
        own, group = self.kv_heads_of(rank, world), self.num_heads // self.num_kv_heads
        return range(own.start * group, own.stop * group)

    def kv_heads_of(self, rank: int, world: int) -> range:
        """The KV heads of a rank: its share, or the one that its query heads need if ranks are more."""
        if world > self.num_kv_heads:
            head = rank * self.num_kv_heads // world
            return range(head, head + 1)
        return share_of_heads(self.num_kv_heads, rank, world)

    def held_kv_heads(self, ranks: int, world: int) -> int:
        """How many KV heads the first `ranks` of all ranks hold together; one that two hold counts twice."""
        return sum(len(self.kv_heads_of(rank, world)) for rank in range(ranks))

    def check_split(self, world: int) -> None:
        """Refuses a number of ranks that the model cannot be split over.

        Any number up to that of the KV heads is possible; more ranks share KV heads, and then have to divide.

        Raises:
            ModelError: The sentence names the numbers that are possible.
        """
        reason = self._obstacle(world)
        if reason is not None:
            raise ModelError(f"tensor_parallel={world} {reason}; possible values: {self._possible_splits()}")

    def _obstacle(self, world: int) -> str | None:
        if world < 1:
            return "is no number of ranks"
        if world > self.intermediate_size:
            return f"exceeds the model's intermediate_size={self.intermediate_size}"
        if world > self.num_kv_heads and (self.num_heads % world or world % self.num_kv_heads):
            return (
                f"exceeds the model's num_key_value_heads={self.num_kv_heads} and is no multiple of it that "
                f"divides num_attention_heads={self.num_heads}"
            )
        return None

    def _possible_splits(self) -> str:
        most = min(self.num_kv_heads, self.intermediate_size)
        few = [f"1 to {most}"] if most > 2 else [str(world) for world in range(1, most + 1)]
        more = range(most + 1, self.num_heads + 1)
        return ", ".join(few + [str(world) for world in more if self._obstacle(world) is None])
