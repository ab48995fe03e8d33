"""Returns the `config.json` that the model in a GGUF file would have, so that the engine reads one form.

To add an architecture, enter it in a table of `architectures/` with a function that gives the fields of its
own. Architectures and keys that are not known here are refused by name.
"""

from typing import Any

from services.worker.gguf.architectures.base import GgufArchitecture, decoder_fields
from services.worker.gguf.architectures.deepseek import DEEPSEEK
from services.worker.gguf.architectures.gated import GATED
from services.worker.gguf.architectures.layer_norms import LAYER_NORMS
from services.worker.gguf.architectures.mixtures import MIXTURES
from services.worker.gguf.architectures.older import OLDER
from services.worker.gguf.gguf_file import GgufFile
from services.worker.gguf.header_bytes import BadGguf
from services.worker.gguf.metadata_fields import MetadataFields
from services.worker.model_files.json_files import shown

ARCHITECTURES: dict[str, GgufArchitecture] = GATED | LAYER_NORMS | OLDER | MIXTURES | DEEPSEEK


def architecture_of(file: GgufFile) -> GgufArchitecture:
    """What is known about the file's architecture.

    Raises:
        BadGguf: Nothing.
    """
    known = ARCHITECTURES.get(file.architecture)
    if known is None:
        raise BadGguf(
            f"{file.path}: architecture {shown(file.architecture)} is not supported; choose a model of "
            f"{', '.join(ARCHITECTURES)}"
        )
    return known


def hf_config(file: GgufFile) -> dict[str, Any]:
    """The fields of a Hugging Face `config.json` for this model.

    Raises:
        BadGguf: The architecture is unknown, a key is missing, of a wrong type, or not supported.
    """
    architecture = architecture_of(file)
    fields = MetadataFields(file)
    common = decoder_fields(fields)
    if "head_dim" in architecture.without:
        fields.require("attention.key_length", (common["hidden_size"] // common["num_attention_heads"],))
    if "num_key_value_heads" in architecture.without and "attention.head_count_kv" not in fields.read:
        fields.require("attention.head_count_kv", (common["num_attention_heads"],))
    common = {name: value for name, value in common.items() if name not in architecture.without}
    config = common | architecture.variant(fields)
    if not any(name.endswith(("eps", "epsilon")) for name in config):
        fields.number("attention.layer_norm_rms_epsilon")  # it is missing, and no default is right
    for key, neutral in _NEUTRAL.items():
        if key not in fields.read:
            fields.require(key, neutral)
    for key in _WITHOUT_EFFECT:
        fields.has(key)
    fields.refuse_unread()
    return config


# keys of related architectures, with the values that do not change the computation; the first is the default
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "use_parallel_residual": (False,),
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.scale": (0,),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "embedding_scale": (0, 1),
    "residual_scale": (0, 1),
    "logit_scale": (0, 1),
    "pooling_type": (0,),
}
# `vocab_size` repeats the rows of the embedding; the other one names the source of a conversion
_WITHOUT_EFFECT = ("vocab_size", "tensor_data_layout")
