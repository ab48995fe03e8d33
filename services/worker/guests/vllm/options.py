"""How vLLM is started: two settings of its own, and what it shares with our engine."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from services.worker.domain.blocks.names import PrefixSharing


@dataclass(frozen=True, kw_only=True)
class VllmSettings:
    """What operators choose. `WorkerSettings` inherits the fields, so each is also a setting `RYZ_<NAME>`."""

    vllm_python: str = ""
    """With `RYZ_ENGINE=vllm`: the Python interpreter of the environment that vLLM is installed in."""
    vllm_args: Annotated[str, Field(max_length=8192)] = ""
    """With `RYZ_ENGINE=vllm`: engine arguments of `vllm serve`, such as `--tensor-parallel-size 2
    --max-model-len 2048`. See docs/guests.md."""


@dataclass(frozen=True, kw_only=True)
class VllmOptions(VllmSettings):
    """How to run a model in vLLM.

    Attributes:
        model: Its directory, or what else vLLM takes.
        prefix_sharing: Which sequences share what its prefix cache has.
        silence_s: How long its engine may leave a ping without an answer, which comes between two steps.
        stop_timeout_s: How long it may take to end itself.
    """

    model: str
    prefix_sharing: PrefixSharing
    silence_s: float
    stop_timeout_s: float = 5.0
