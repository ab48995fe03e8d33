"""The shape of a model, and which of its heads each rank has; `read_config.py` reads it."""

from dataclasses import dataclass

from services.worker.engine.checkpoint.rank_shares import share_of_heads
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.layer import ExpertsConfig, LayerConfig, NormConfig
from services.worker.engine.config.rope import RopeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape of a decoder; sizes are of the whole model, not of one rank.

    Attributes:
        architecture: As in `config.json`.
        num_heads: Query heads of every layer.
        num_kv_heads: Heads of keys and values of every layer.
        head_dim: Of queries, keys and values; with latent attention of queries.
        context_length: In tokens.
        layers: From the first to the last.
        tied_embeddings: The head's weights are the embedding's.
        head_bias: The head has a bias.
        embedding_scale: Multiplies the rows of the embedding table.
        learned_positions: Rows of a table of positions that is added to the embeddings; 0: there is none.
        logit_scale: Multiplies the logits.
        logit_softcap: Logits then become logit_softcap * tanh(logits / logit_softcap); 0: they do not.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    layers: tuple[LayerConfig, ...]
    final_norm: NormConfig
    tied_embeddings: bool
    head_bias: bool = False
    embedding_scale: float = 1.0
    learned_positions: int = 0
    logit_scale: float = 1.0
    logit_softcap: float = 0.0

    @property
    def num_layers(self) -> int:
        """How many layers the model has."""
        return len(self.layers)

    @property
    def windows(self) -> tuple[int, ...]:
        """Per layer, how many last positions a token sees, itself included; 0 for all."""
        return tuple(layer.attention.window for layer in self.layers)

    @property
    def rope(self) -> RopeConfig:
        """How queries and keys are rotated, of a model whose layers all do it in the same way.

        Raises:
            ValueError: The layers differ, or do not rotate.
        """
        (rope,) = {layer.attention.rope for layer in self.layers}
        if rope is None:
            raise ValueError("the layers do not rotate queries and keys")
        return rope

    @property
    def least_inner(self) -> int:
        """Inner features of the narrowest MLP or expert, of which every rank needs one at least."""
        mlps = [layer.mlp for layer in self.layers]
        experts = [mlp for mlp in mlps if isinstance(mlp, ExpertsConfig)]
        dense = [mlp for mlp in mlps if not isinstance(mlp, ExpertsConfig)]
        shared = [each.shared for each in experts if each.shared is not None]
        return min(mlp.inner for mlp in (*dense, *shared, *(each.expert for each in experts)))

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

    @property
    def cached_heads(self) -> int:
        """KV heads of the cache and the store: with latent attention one, which stands for all."""
        return 1 if self.latent else self.num_kv_heads

    @property
    def cached_values(self) -> int:
        """Numbers that a token adds to the cache for each cached head, in all layers together."""
        return sum(
            2 * self.head_dim if latent is None else latent.rank + latent.rope_dim
            for latent in (layer.attention.latent for layer in self.layers)
        )

    @property
    def latent(self) -> bool:
        """Whether the layers have latent attention, as all or none do."""
        return self.layers[0].attention.latent is not None

    def cached_heads_of(self, rank: int, world: int) -> range:
        """The cached heads of a rank; with latent attention every rank has the one."""
        return range(1) if self.latent else self.kv_heads_of(rank, world)

    def held_kv_heads(self, ranks: int, world: int) -> int:
        """How many cached heads the first `ranks` of all ranks hold together, each as often as it is held."""
        return sum(len(self.cached_heads_of(rank, world)) for rank in range(ranks))

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
        if world > self.least_inner:
            return f"exceeds the model's intermediate_size={self.least_inner}"
        if world > self.num_kv_heads and (self.num_heads % world or world % self.num_kv_heads):
            return (
                f"exceeds the model's num_key_value_heads={self.num_kv_heads} and is no multiple of it that "
                f"divides num_attention_heads={self.num_heads}"
            )
        return None

    def _possible_splits(self) -> str:
        most = min(self.num_kv_heads, self.least_inner)
        few = [f"1 to {most}"] if most > 2 else [str(world) for world in range(1, most + 1)]
        more = range(most + 1, self.num_heads + 1)
        return ", ".join(few + [str(world) for world in more if self._obstacle(world) is None])
