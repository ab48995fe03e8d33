"""What `ryz models show` prints of a model: shape, files, licence, and the memory it needs by precision."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from cli.console import fail
from cli.models.catalogue import catalogue
from cli.models.names import is_hub_name, served_name
from cli.models.records import read_record
from cli.models.sampling_facts import SamplingFact, sampling_facts, sampling_text
from cli.models.store import in_bytes, size_of

if TYPE_CHECKING:
    from cli.stack.memory_needs import GivenSizing, MachineFacts
    from services.worker.engine.checkpoint.model_size import ModelSize


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """A model, as this program would serve it.

    Attributes:
        served_as: The name that clients use, unless another is given.
        bytes: Size of all files together.
        memory: Bytes of the weights in memory, and of the KV of one token (`kv_windowed` of these in layers
            with a sliding window), for each precision.
        window: Tokens that layers with a sliding window see; 0 if there are none.
        latent: Whether the KV cache holds latent vectors.
        stored: The precision of the files, which `--precision auto` takes.
        flags: The options of `ryz up` that it would choose on this machine, and `chosen` says why.
        findings: What is unusual about its chat template and its end of sequence, in sentences.
        sampling: Its defaults of sampling; none if it cannot be served.
        refused: Why it cannot be served; empty if it can. Then the fields of its shape are 0.
    """

    name: str
    path: str
    served_as: str
    bytes: int
    files: list[str]
    licence: str = ""
    source: str = ""
    notes: str = ""
    architecture: str = ""
    parameters: int = 0
    context: int = 0
    memory: dict[str, dict[str, int]]
    window: int = 0
    latent: bool = False
    stored: str = ""
    flags: str = ""
    chosen: str = ""
    findings: list[str] = field(default_factory=list)
    sampling: dict[str, SamplingFact] = field(default_factory=dict)
    refused: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)

    def table(self) -> Table:
        """Return the facts as lines for people."""
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(style="dim")
        table.add_column(overflow="fold")
        rows = {
            "name": self.name,
            "served as": self.served_as,
            "path": self.path,
            "files": f"{', '.join(self.files)} ({in_bytes(self.bytes)})",
            "source": self.source,
            "licence": self.licence,
            "notes": self.notes,
            "cannot be served": self.refused,
            "architecture": self.architecture,
            "parameters": f"{self.parameters / 1e6:,.1f} M" if self.parameters else "",
            "precision of the files": self.stored,
            "context": f"{self.context:,} tokens" if self.context else "",
            "sampling": sampling_text(self.sampling),
        }
        for precision, needs in self.memory.items():
            weights = in_bytes(needs["weights"])
            rows[f"memory, {precision}"] = f"weights {weights} in a group, KV {self._kv(needs)}"
        rows["findings"] = "\n".join(self.findings)
        rows |= {"`ryz up` chooses": self.flags, "because": self.chosen}
        for key, value in rows.items():
            if value:
                table.add_row(key, value)
        return table

    def _kv(self, needs: dict[str, int]) -> str:
        each, windowed = needs["kv_token"], needs["kv_windowed"]
        if self.latent:
            return f"{each:,} B per token (latent vectors, on every rank)"
        if not windowed:
            return f"{each:,} B per token"
        if windowed == each:
            return f"{each:,} B per token, of which layers keep the last {self.window:,}"
        return (
            f"{each - windowed:,} B per token, and {windowed:,} B per token of the last {self.window:,} "
            "(layers with a sliding window)"
        )


def model_facts(name: str, path: Path) -> ModelFacts:
    """Gather the facts; a model that this program cannot serve has the reason among them."""
    from cli.stack.machine import given_sizing  # noqa: PLC0415 (quick `--help`)
    from cli.stack.machine_facts import machine_facts, measure_model  # noqa: PLC0415 (quick `--help`)
    from cli.stack.options import UpOptions  # noqa: PLC0415
    from services.worker.engine.config.json_fields import ModelError  # noqa: PLC0415
    from services.worker.engine.config.read_config import read_config  # noqa: PLC0415
    from services.worker.engine.precision import SERVED  # noqa: PLC0415
    from services.worker.model_files.load_model import load_model  # noqa: PLC0415
    from shared.errors import InvalidRequest  # noqa: PLC0415

    known, record = catalogue().get(name), read_record(path)
    common: dict[str, Any] = {
        "name": name,
        "path": str(path),
        "served_as": name if known and not is_hub_name(name) else served_name(path),
        "bytes": size_of(path),
        "files": _files(path),
        "licence": known.licence if known else record.licence if record else "",
        "source": known.source if known else record.source if record else "",
        "notes": known.notes if known else "",
    }
    if not common["files"]:
        fail(f"{path} holds no model. Give a Hugging Face directory or a GGUF file.", 2)
    try:
        config, sampling = read_config(path), sampling_facts(path)
        model = load_model(path, "model")  # the name that it is served by is checked elsewhere
    except ModelError as error:
        return ModelFacts(**common, memory={}, refused=str(error))
    except InvalidRequest as refusal:
        return ModelFacts(**common, memory={}, refused=refusal.message)
    machine = machine_facts(UpOptions(), will_compile=True)
    size = measure_model(path, kernels=machine.kernels)
    memory: dict[str, dict[str, int]] = {
        precision: {
            "weights": size.weight_bytes(precision),
            "kv_token": size.kv_token_bytes(precision),
            "kv_windowed": size.windowed_token_bytes(precision),
        }
        for precision in SERVED
        if precision == "fp32" or not size.latent  # latent attention has no kernels
    }
    flags, chosen = _choice(size, config.context_length, machine, given_sizing())
    return ModelFacts(
        **common,
        memory=memory,
        findings=model.findings,
        flags=flags,
        chosen=chosen,
        architecture=config.architecture,
        parameters=size.parameters,
        context=config.context_length,
        window=size.window,
        latent=size.latent,
        stored=size.stored,
        sampling=sampling,
    )


def _choice(
    size: "ModelSize", context: int, machine: "MachineFacts", given: "GivenSizing"
) -> tuple[str, str]:
    """Return the options that `ryz up` would choose, and the line that it prints."""
    from cli.stack.sizing import (  # noqa: PLC0415 (quick `--help`)
        DoesNotFit,
        choose_sizing,
    )
    from cli.stack.sizing_text import describe_sizing, refusal  # noqa: PLC0415

    try:
        sizing = choose_sizing(size, context, machine, given)
    except DoesNotFit:
        return "", refusal(size, context, machine, given)
    flags = (
        f"--groups {sizing.groups} --tensor-parallel {sizing.tensor_parallel} --threads {sizing.threads} "
        f"--precision {sizing.precision} --kv-cache-tokens {sizing.kv_cache_tokens}"
    )
    return flags, describe_sizing(sizing, size, machine)


def _files(path: Path) -> list[str]:
    if path.is_file():
        return [path.name]
    return sorted(file.name for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
