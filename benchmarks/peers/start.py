"""Starts peers, each in a process and a Python of its own."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.lib.child import ChildObject
from benchmarks.peers.base import PeerLoad
from benchmarks.peers.known import KnownPeer, python_of, variables_of
from benchmarks.peers.model_forms import ModelForms


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSizes:
    """What a peer is loaded for.

    Attributes:
        max_sequences: Largest batch.
        max_length: Longest prompt with its answer, in tokens.
        logits: Whether it is asked for the logits of every position, not for its speed.
        device: `cpu` or `cuda`.
    """

    max_sequences: int
    max_length: int
    threads: int
    logits: bool = False
    device: str = "cpu"


def start_peer(
    peer: KnownPeer, kind: str, forms: ModelForms, sizes: PeerSizes, environments: Path | None
) -> ChildObject:
    """Start a peer's process; it has loaded the model when `receive` returns.

    Args:
        peer: One of `PEERS`.
        kind: One of its types of weights.
        forms: The model; the form that the peer loads is made here, which may take minutes.
        sizes: What it is loaded for.
        environments: The directory of the peers' environments.

    Raises:
        BenchError: The model cannot be converted for it.
    """
    python = python_of(peer, environments)
    load = PeerLoad(
        model=str(forms.path(peer.form, kind, python)),
        kind=kind,
        max_sequences=sizes.max_sequences,
        max_length=sizes.max_length,
        threads=sizes.threads,
        logits=sizes.logits,
        device=sizes.device,
    )
    return ChildObject(peer.maker, {"load": load}, variables_of(peer, sizes.threads), python=python)
