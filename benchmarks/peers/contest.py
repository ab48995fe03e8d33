"""The peers of one measurement: which of their types run, their processes, and why others do not run."""

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from benchmarks.lib.child import ChildObject
from benchmarks.lib.measuring import BenchError, Progress
from benchmarks.peers.known import KnownPeer, read_peer
from benchmarks.peers.model_forms import ModelForms
from benchmarks.peers.start import PeerSizes, start_peer

_LOAD_S = 900.0


@dataclass(frozen=True, slots=True)
class PeerType:
    """A peer with one of its types of weights."""

    peer: KnownPeer
    kind: str

    @property
    def name(self) -> str:
        """As progress and tables show it."""
        return f"{self.peer.name} {self.kind}"


def peer_types(texts: Sequence[str], precisions: Sequence[str]) -> list[PeerType]:
    """Return what `--peer` asks for: the types that it names, else those at the level of our precisions.

    Raises:
        BenchError: A peer is not known.
    """
    found = []
    for text in texts:
        peer, given = read_peer(text)
        usual = [kind for precision in precisions for kind in peer.types.get(precision, ())]
        found += [PeerType(peer, kind) for kind in given or usual or precisions[:1]]
    return list({one.name: one for one in found}.values())


@dataclass(slots=True)
class PeerProcesses:
    """Running peers of one model; closing ends them and removes what was made for them.

    Attributes:
        model: A Hugging Face directory or a GGUF file.
        environments: The directory of the peers' environments; None: all run in this Python.
        running: Those that have loaded the model, by `PeerType.name`.
        refusals: Why others do not run, by `PeerType.name`.
    """

    model: Path
    environments: Path | None
    running: dict[str, ChildObject] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)
    _forms: ModelForms | None = None

    def __enter__(self) -> Self:
        scratch = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="ryz-peers-"))
        self._forms = ModelForms(self.model, Path(scratch))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    async def start(self, types: Sequence[PeerType], sizes: PeerSizes, progress: Progress) -> None:
        """Start peers, one after the other; a peer that refuses the model does not stop the others."""
        for one in types:
            progress(f"{one.name}: loading")
            await asyncio.to_thread(self._start, one, sizes)

    def load(self, one: PeerType, sizes: PeerSizes) -> ChildObject:
        """Start a peer and wait until it has loaded the model.

        Raises:
            BenchError: It cannot.
        """
        assert self._forms is not None  # it was entered
        child = start_peer(one.peer, one.kind, self._forms, sizes, self.environments)
        self._stack.callback(child.close)
        child.receive(_LOAD_S)
        return child

    def _start(self, one: PeerType, sizes: PeerSizes) -> None:
        try:
            self.running[one.name] = self.load(one, sizes)
        except BenchError as error:
            self.refusals[one.name] = str(error)
