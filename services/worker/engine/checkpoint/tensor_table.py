"""Lists the tensors of a model, and checks that its config demands just these; it imports no torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from services.worker.engine.checkpoint.gguf_tensors import gguf_tensors
from services.worker.engine.checkpoint.safetensors_file import read_header, weight_files
from services.worker.engine.checkpoint.stored_tensor import ITEM_BYTES, StoredTensor
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.model_config import ModelConfig
from services.worker.gguf.gguf_file import is_gguf

# tensors of old files, which are computed from the config instead
_IGNORED = ("rotary_emb.inv_freq",)


@dataclass(frozen=True, slots=True)
class TensorTable:
    """The tensors of a model.

    Attributes:
        model: The model's directory or file.
        tensors: By Hugging Face's names.
    """

    model: Path
    tensors: dict[str, StoredTensor]

    def find(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        """Finds a tensor and checks its shape and type.

        Args:
            name: Hugging Face's.
            shape: The whole tensor's shape, as the config demands it.

        Raises:
            ModelError: The tensor is missing, or has another shape or a type that is not supported.
        """
        stored = self.tensors.get(name)
        if stored is None:
            raise ModelError(f"{self.model}: tensor {name} is in none of the weight files")
        if stored.shape != shape:
            raise ModelError(
                f"{stored.path}: tensor {name} has shape {stored.shape}, {self._config} demands {shape}"
            )
        if stored.kind not in ITEM_BYTES and (stored.blocks is None or len(shape) != 2):
            supported = ", ".join(sorted(ITEM_BYTES))
            if stored.blocks is not None:
                supported += ", because it is no matrix"
            raise ModelError(f"{stored.path}: tensor {name} has type {stored.kind}, supported: {supported}")
        return stored

    def check(self, config: ModelConfig) -> None:
        """Checks all tensors.

        Raises:
            ModelError: One is missing, misshapen, of an unknown type, or superfluous.
        """
        expected = dict(tensor_shapes(config))
        for name, shape in expected.items():
            self.find(name, shape)
        if config.tied_embeddings:
            expected["lm_head.weight"] = ()  # some files hold the copy
        for name, stored in self.tensors.items():
            if name not in expected and not name.endswith(_IGNORED):
                raise ModelError(
                    f"{stored.path}: tensor {name} has no place in the model that {self._config} describes; "
                    f"one of the two belongs to another model"
                )

    @property
    def _config(self) -> str:
        """What describes the model's shape."""
        return "its metadata" if is_gguf(self.model) else "config.json"


def stored_tensors(model: Path) -> dict[str, StoredTensor]:
    """All tensors of a model by Hugging Face's names.

    Args:
        model: A directory in Hugging Face format, or a GGUF file.

    Raises:
        ModelError: A file is missing or damaged.
    """
    if is_gguf(model):
        return gguf_tensors(model)
    tensors: dict[str, StoredTensor] = {}
    for path in weight_files(model):
        for name, tensor in read_header(path).items():
            if name in tensors:
                raise ModelError(f"{path}: tensor {name} is in {tensors[name].path.name} as well; remove one")
            tensors[name] = tensor
    return tensors


def tensor_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of all tensors of a model."""
    c = config
    queries, keys = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    yield "model.embed_tokens.weight", (c.vocab_size, c.hidden_size)
    for index, shape in enumerate(c.layers):
        layer, attention, mlp = f"model.layers.{index}", shape.attention, shape.dense_mlp
        linears = {
            "self_attn.q_proj": (queries, c.hidden_size, attention.qkv_bias),
            "self_attn.k_proj": (keys, c.hidden_size, attention.qkv_bias),
            "self_attn.v_proj": (keys, c.hidden_size, attention.qkv_bias),
            "self_attn.o_proj": (c.hidden_size, queries, attention.output_bias),
            "mlp.gate_proj": (mlp.inner, c.hidden_size, mlp.bias),
            "mlp.up_proj": (mlp.inner, c.hidden_size, mlp.bias),
            "mlp.down_proj": (c.hidden_size, mlp.inner, mlp.down_bias),
        }
        norms = {"input_layernorm": c.hidden_size, "post_attention_layernorm": c.hidden_size}
        if attention.qk_norm:
            norms |= {"self_attn.q_norm": c.head_dim, "self_attn.k_norm": c.head_dim}
        for name, (rows, columns, bias) in linears.items():
            yield f"{layer}.{name}.weight", (rows, columns)
            if bias:
                yield f"{layer}.{name}.bias", (rows,)
        for name, size in norms.items():
            yield f"{layer}.{name}.weight", (size,)
    yield "model.norm.weight", (c.hidden_size,)
    if not c.tied_embeddings:
        yield "lm_head.weight", (c.vocab_size, c.hidden_size)
