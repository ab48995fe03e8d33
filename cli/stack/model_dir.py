"""Finds the model that a stack serves, and refuses one that cannot be served."""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from cli.console import fail
from cli.models.resolve import refuse_unserved, resolve_model

MODEL_FILES = ("config.json", "tokenizer.json")


def find_model(
    model: Path | None, engine: str, tensor_parallel: int, *, pull: bool | None = None
) -> Path | None:
    """Return the path of the model: the given one, or the demo that ships with the repository.

    The null engine needs none.

    Args:
        model: The name or path that was asked for.
        engine: `torch`, `null` or `vllm`; the shape of a model is checked for `torch` only.
        tensor_parallel: Ranks that share the model.
        pull: Whether a model that is not here is fetched; None: if there is a terminal.

    Raises:
        CommandError: The model is missing, holds no model, or one that cannot be served or split like
            this. A rank would say so only seconds later.
    """
    if model is None and engine == "null":
        return None
    if model and engine == "torch":
        refuse_unserved(str(model))
    directory = resolve_model(model, pull=pull) if model else demo_model()
    if directory.is_file():
        if engine == "torch":
            _check_config(directory, tensor_parallel)
        _check_texts(directory)
        return directory.resolve()
    if not directory.is_dir():  # the demo was removed
        fail(
            f"There is no model directory {directory}. Give another model with `--model NAME|PATH`, or make "
            f"the demo with `ryz train-demo --output {directory}`.",
            2,
        )
    if engine == "torch" and (directory / "config.json").exists():
        _check_config(directory, tensor_parallel)
    missing = [name for name in MODEL_FILES if not (directory / name).exists()]
    if missing:
        fail(
            f"{directory} holds no model in Hugging Face format: {' and '.join(missing)} missing. "
            "Give another directory with `--model PATH`.",
            2,
        )
    _check_texts(directory)
    return directory.resolve()


def _check_texts(model: Path) -> None:
    """Fail if the workers would refuse the tokenizer, the chat template or the end tokens of a model."""
    from services.worker.model_files.load_model import load_model  # noqa: PLC0415 (quick `--help`)
    from shared.errors import InvalidRequest  # noqa: PLC0415

    try:
        load_model(model, "model")  # the name that it is served by is checked elsewhere
    except InvalidRequest as error:
        fail(f"This model cannot be served: {error.message}.", 2)


def _check_config(directory: Path, tensor_parallel: int) -> None:
    from services.worker.engine.checkpoint.tensor_table import TensorTable, stored_tensors  # noqa: PLC0415
    from services.worker.engine.config.json_fields import ModelError  # noqa: PLC0415 (quick `--help`)
    from services.worker.engine.config.read_config import read_config  # noqa: PLC0415 (quick `--help`)

    try:
        config = read_config(directory)
        if directory.is_file():  # a directory's weights are read by the ranks
            TensorTable(directory, stored_tensors(directory)).check(config)
    except ModelError as error:
        fail(f"This model cannot be served: {error}.", 2)
    if problem := refuse_split(directory, tensor_parallel):
        fail(f"`--tensor-parallel {tensor_parallel}` does not suit {directory}: {problem}.", 2)


def refuse_split(model: Path, tensor_parallel: int) -> str:
    """Return why so many ranks cannot share a model; empty if they can."""
    from services.worker.engine.config.json_fields import ModelError  # noqa: PLC0415 (quick `--help`)
    from services.worker.engine.config.read_config import read_config  # noqa: PLC0415

    try:
        read_config(model).check_split(tensor_parallel)
    except ModelError as error:
        return str(error)
    return ""


def demo_model() -> Path:
    """Return the directory of the demo model in this checkout."""
    in_checkout = Path(__file__).resolve().parents[2] / "models" / "demo"
    return in_checkout if in_checkout.is_dir() else _installed_demo() or in_checkout


def _installed_demo() -> Path | None:
    """The directory of the demo model that a wheel has put beside the package's other data."""
    try:
        files = distribution("ryzanstein").files or []
    except PackageNotFoundError:
        return None
    config = next((file for file in files if file.match("share/ryzanstein/models/demo/config.json")), None)
    return Path(str(config.locate())).resolve().parent if config is not None else None
