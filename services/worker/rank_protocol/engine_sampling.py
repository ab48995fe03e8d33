"""The parameters of sampling as engines compute with them: every one is a number.

Ranks import this module, and so do the pure parts of the leader that make their sequences.
"""

from typing import Any

from shared.messages import Sampling


class EngineSampling(Sampling, frozen=True, kw_only=True):
    """Parameters of sampling with nothing left to a model's defaults."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


_FIELDS = Sampling.__struct_fields__


def engine_sampling(sampling: Sampling) -> EngineSampling:
    """Returns the parameters of a request for an engine; one that is not given does nothing."""
    given: dict[str, Any] = {
        name: value for name in _FIELDS if (value := getattr(sampling, name)) is not None
    }
    return EngineSampling(**given)
