"""What the table of architectures is made of: a small config of transformers, and numbers of ranks to try."""

from dataclasses import dataclass, field
from typing import Any

VOCABULARY = 203  # divisible by none of 2, 3 and 4
WINDOW = 20  # much shorter than the texts, and no multiple of a block
SLIDING = ["sliding_attention", "full_attention", "sliding_attention"]

# fields that most configs of transformers have
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,  # large enough that logits differ by more than rounding
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# grouped queries, and heads whose sizes do not add up to the hidden size
GROUPED: dict[str, Any] = COMMON | {"num_attention_heads": 8, "head_dim": 16}


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyEntry:
    """One architecture, or a variant of it.

    Attributes:
        architecture: As in `config.json`.
        model_type: transformers' name of its config.
        fields: All fields of that config that are not left at their defaults.
        worlds: Numbers of ranks that the matrix tries.
    """

    architecture: str
    model_type: str
    fields: dict[str, Any] = field(default_factory=dict)
    worlds: tuple[int, ...] = (1, 2, 3, 4)


def rope(theta: float = 10000.0, **more: Any) -> dict[str, Any]:
    """`rope_parameters` of a config."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta} | more}
