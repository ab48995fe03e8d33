"""Other engines that compute the same model, measured in turns with ours; `base.py` has their contract."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.lib.child import ChildObject
from benchmarks.plans import PEER_PACKAGES

_MAKERS = {
    "transformers": "benchmarks.peers.hf_transformers:Transformers",
    "llama.cpp": "benchmarks.peers.llama_cpp:LlamaCpp",
}


def missing_packages(name: str) -> list[str]:
    """The packages of a peer that are not installed."""
    return [package for package in PEER_PACKAGES[name] if find_spec(package) is None]


def start_peer(name: str, model: Path, precision: str, max_sequences: int, max_length: int) -> ChildObject:
    """Start a peer's process; it has loaded the model when `receive` returns.

    Args:
        name: One of `PEER_PACKAGES`.
        model: Directory in Hugging Face format, or a GGUF file for llama.cpp.
        precision: fp32, fp16, bf16, int8 or int4.
        max_sequences: Largest batch.
        max_length: Longest prompt with its answer, in tokens.
    """
    given: dict[str, Any] = {"model": model, "precision": precision}
    if name == "llama.cpp":
        given |= {"max_sequences": max_sequences, "max_length": max_length}
    return ChildObject(_MAKERS[name], given)  # no variables of ours: its threads are to have its own defaults
