"""Which model `ryz up` serves when none is named."""

from pathlib import Path

import pytest

from cli.console import INTERRUPTED, CommandError
from cli.stack import default_model as module
from cli.stack.default_model import DEFAULT, default_model
from cli.stack.model_dir import demo_model


@pytest.fixture(autouse=True)
def no_model_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty models directory, and an index that cannot be reached."""
    monkeypatch.setenv("RYZ_MODELS_DIR", str(tmp_path))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")


def test_without_a_network_it_is_the_demo_and_the_line_says_why() -> None:
    path, closing = default_model(pull=None)
    assert path == demo_model()
    assert closing.startswith("This is the demo model, 2 M parameters")
    assert f"{DEFAULT} could not be fetched: 127.0.0.1:9 cannot be reached" in closing


def test_what_must_not_be_fetched_is_not() -> None:
    path, closing = default_model(pull=False)
    assert path == demo_model()
    assert f"`ryz models pull {DEFAULT}`" in closing


def test_a_model_that_is_here_needs_no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = tmp_path / "smollm2-135m.gguf"
    monkeypatch.setattr(module, "resolve_model", lambda name, pull: here)
    path, closing = default_model(pull=None)
    assert path == here
    assert closing.startswith(f"The model is {DEFAULT}")


def test_ctrl_c_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str, *, pull: bool) -> Path:
        raise CommandError("Interrupted.", INTERRUPTED)

    monkeypatch.setattr(module, "resolve_model", interrupted)
    with pytest.raises(CommandError):
        default_model(pull=None)
