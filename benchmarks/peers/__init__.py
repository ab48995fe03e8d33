"""What users would run instead, measured on the same model in the same call. `base.py` has the contract."""

from importlib.util import find_spec
from pathlib import Path

from benchmarks.lib.child import Child

# name on the command line: the packages that it needs
PEERS = {"transformers": ("transformers",), "llama.cpp": ("llama_cpp", "gguf")}


def missing_packages(name: str) -> list[str]:
    """The packages of a peer that are not installed."""
    return [package for package in PEERS[name] if find_spec(package) is None]


def start_peer(name: str, model: Path, precision: str, max_sequences: int, max_length: int) -> Child:
    """Starts a peer's process; it has loaded the model when `receive` returns.

    Args:
        name: One of `PEERS`.
        model: Directory in Hugging Face format.
        precision: fp32, fp16, bf16 or int8.
        max_sequences: Largest batch.
        max_length: Longest prompt with its answer, in tokens.
    """
    # its own defaults: what is set for us to tune threads must not slow it down, or speed it up
    if name == "transformers":
        return Child(
            "benchmarks.peers.hf_transformers:Transformers", {"model": model, "precision": precision}
        )
    sizes = {"max_sequences": max_sequences, "max_length": max_length}
    return Child("benchmarks.peers.llama_cpp:LlamaCpp", {"model": model, "precision": precision, **sizes})
