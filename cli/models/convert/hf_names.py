"""Gives the tensors of a GGUF file the names that Hugging Face uses, by the table of the `gguf` package."""

from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, get_tensor_name_map

from services.worker.gguf.architectures.base import num_layers
from services.worker.gguf.gguf_config import architecture_of
from services.worker.gguf.gguf_file import GgufFile
from services.worker.gguf.metadata_fields import MetadataFields
from services.worker.gguf.rope_keys import FREQUENCY_DIVISORS

_MODULES = ("model.embed_tokens", "model.norm", "lm_head")
_LAYER_MODULES = (
    "input_layernorm",
    "post_attention_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "self_attn.q_norm",
    "self_attn.k_norm",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
_INTERLEAVED = ("self_attn.q_proj", "self_attn.k_proj")
_SUFFIXES = (".weight", ".bias")


def hf_names(file: GgufFile) -> dict[str, str]:
    """Hugging Face's name of each tensor, by the file's.

    A tensor that has none keeps the name of the file. Those that the config has taken up are left out.

    Raises:
        BadGguf: The architecture is not supported, or the number of layers is none.
    """
    architecture_of(file)
    names = {}
    for module, stored in _module_names(file.architecture, num_layers(MetadataFields(file))).items():
        names.update({f"{stored}{suffix}": f"{module}{suffix}" for suffix in _SUFFIXES})
    return {name: names.get(name, name) for name in file.tensors if name != FREQUENCY_DIVISORS}


def has_interleaved_heads(file: GgufFile, hf_name: str) -> bool:
    """Whether the rows of each head in this tensor are in pairs that are rotated together."""
    module = hf_name.rpartition(".")[0]
    return architecture_of(file).interleaved_heads and module.endswith(_INTERLEAVED)


def _module_names(architecture: str, layers: int) -> dict[str, str]:
    """The file's name of each module, by Hugging Face's."""
    kind = next(kind for kind, name in MODEL_ARCH_NAMES.items() if name == architecture)
    table = get_tensor_name_map(MODEL_ARCH(kind), layers)
    modules = [*_MODULES]
    for index in range(layers):
        modules += [f"model.layers.{index}.{module}" for module in _LAYER_MODULES]
    found = {module: table.get_name(module) for module in modules}
    return {module: name for module, name in found.items() if name is not None}
