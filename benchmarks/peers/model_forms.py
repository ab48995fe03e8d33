"""Brings a model into the form that a peer loads: GGUF file, Hugging Face directory, OpenVINO directory.

Values stay as they are until the peer itself rounds them to its type: quantized files become fp32.
"""

import json
import os
import subprocess
from pathlib import Path

from benchmarks.lib.measuring import BenchError
from benchmarks.peers.known import ModelForm
from shared.host.own_python import module_command, module_environment

_EXPORT_S = 3600.0


class ModelForms:
    """The forms of one model, each made once when it is first wanted.

    Args:
        model: A Hugging Face directory or a GGUF file.
        scratch: A directory for what is made; the caller removes it.
    """

    def __init__(self, model: Path, scratch: Path) -> None:
        self._model = model
        self._scratch = scratch

    def path(self, form: ModelForm, kind: str, python: Path) -> Path:
        """Return the model in a form.

        Args:
            kind: The peer's type of weights; only an OpenVINO directory depends on it.
            python: Of the peer, whose exporter writes an OpenVINO directory.

        Raises:
            BenchError: It cannot be converted.
        """
        if form == "openvino":
            return self._exported(kind, python)
        if (form == "gguf") != self._model.is_dir():
            return self._model
        made = self._scratch / ("fp32.gguf" if form == "gguf" else "directory")
        if not made.exists():
            options = [str(self._model), str(made), "--type", "F32"]
            _run([*module_command("cli"), "models", "convert", *options], module_environment(os.environ))
        return made

    def _exported(self, kind: str, python: Path) -> Path:
        made = self._scratch / f"openvino-{kind}"
        if not made.exists():
            source = self.path("directory", kind, python)
            program = python.with_name("optimum-cli")
            if not program.exists():
                raise BenchError(
                    f"not available: there is no {program}; install optimum-intel and nncf there"
                )
            options = ["--model", str(source), "--task", "text-generation-with-past", "--weight-format", kind]
            if kind == "int4":
                options += ["--group-size", str(group_size(source))]
            # another project's program: it sees none of our modules
            others = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
            _run([str(program), "export", "openvino", *options, str(made)], others)
        return made


def group_size(directory: Path) -> int:
    """Return how many inputs share a scale in 4 bits: 128, as by default, or what divides all inputs."""
    config = json.loads((directory / "config.json").read_text())
    inputs = config["hidden_size"], config["intermediate_size"]
    return next((size for size in (128, 64, 32) if not any(one % size for one in inputs)), -1)


def _run(command: list[str], environment: dict[str, str]) -> None:
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=_EXPORT_S
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"not available: {command[0]} took more than {_EXPORT_S:g} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"{command[0]} ended with {done.returncode}"])[-1]
        raise BenchError(f"not available: {last[:600]}")
