"""vLLM guests for tests: with the stand-in for vLLM, and what watches them."""

import sys
from pathlib import Path
from typing import Any

from services.worker.guests.port import GuestPart, GuestSequence
from services.worker.guests.vllm.guest import VllmGuest
from services.worker.guests.vllm.options import VllmOptions
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.plan import NewSequence

STUB = Path(__file__).parent / "stub_vllm"


def stub_python(folder: Path) -> str:
    """Writes an interpreter in whose environment the stand-in is installed; returns its path."""
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{STUB}" exec "{sys.executable}" "$@"\n')
    script.chmod(0o755)
    return str(script)


def stub_model(folder: Path) -> str:
    """Writes the files of a model without a tokenizer; returns its directory."""
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"weights")
    return str(model)


def sequence(
    seq_id: int,
    prompt: list[int],
    max_tokens: int,
    *,
    so_far: list[int] | None = None,
    eos_ids: list[int] | None = None,
    tenant: str = "",
    **sampling: Any,
) -> GuestSequence:
    """A sequence that is greedy unless `sampling` says otherwise."""
    new = NewSequence(
        seq_id=seq_id,
        token_ids=prompt + (so_far or []),
        prompt_len=len(prompt),
        sampling=EngineSampling(**{"temperature": 0.0, **sampling}),
        eos_ids=eos_ids or [],
        tenant=tenant,
    )
    return GuestSequence(new=new, max_tokens=max_tokens)


class Watched:
    """A guest, and all that it has brought.

    Attributes:
        parts: What came of each sequence.
        failures: Why it was lost.
    """

    def __init__(self, guest: VllmGuest) -> None:
        self.guest = guest
        self.parts: dict[int, list[GuestPart]] = {}
        self.failures: list[str] = []
        guest.watch(lambda part: self.parts.setdefault(part.seq_id, []).append(part), self.failures.append)

    def tokens(self, seq_id: int) -> list[int]:
        return [one.token_id for part in self.parts.get(seq_id, []) for one in part.sampled]

    def end(self, seq_id: int) -> str:
        """How the sequence ended; empty: it goes on."""
        last = self.parts.get(seq_id, [GuestPart(seq_id=seq_id)])[-1]
        return last.finished or last.error

    def has_ended(self, *seq_ids: int) -> bool:
        return all(self.end(seq_id) for seq_id in seq_ids)


def stub_options(folder: Path, arguments: str = "", **given: Any) -> VllmOptions:
    """The environment of the stand-in, and a model, unless `given` says otherwise."""
    own = {"vllm_python": stub_python(folder), "prefix_sharing": "tenant", "silence_s": 30.0}
    return VllmOptions(**{**own, "vllm_args": arguments, "model": stub_model(folder), **given})


def stub_guest(folder: Path, arguments: str = "", *, ping_s: float = 1.0, **given: Any) -> Watched:
    """A guest of the stand-in."""
    return Watched(VllmGuest(stub_options(folder, arguments, **given), ping_s=ping_s))
