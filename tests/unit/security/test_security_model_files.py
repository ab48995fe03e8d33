"""A model's files are data: code that they name is not run or imported, and addresses are not fetched."""

import json
import pickle
import sys
from pathlib import Path

import pytest
from jinja2 import TemplateError

from services.worker.engine.checkpoint.tensor_table import stored_tensors
from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.read_config import read_config
from services.worker.model_files.model_dir import load_model_dir
from services.worker.text.chat_template import ChatTemplate
from shared.errors import InvalidRequest
from shared.messages import ChatMessage
from tests.kits.engine.rank_threads import make_llama

DEMO = Path(__file__).parents[3] / "models" / "demo"


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (self._path,)  # type: ignore[return-value]


def test_code_that_a_config_names_is_not_run(demo_copy: Path, tmp_path: Path) -> None:
    """CVE-2025-66448, CVE-2026-22807, CVE-2026-27893: `auto_map` was imported although that was disabled."""
    fired = tmp_path / "fired"
    (demo_copy / "modeling_evil.py").write_text(f"open({str(fired)!r}, 'w')\nclass Evil: pass\n")
    names = dict.fromkeys(("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer"), "modeling_evil.Evil")
    for file in ("config.json", "tokenizer_config.json"):
        raw = json.loads((demo_copy / file).read_text())
        (demo_copy / file).write_text(json.dumps(raw | {"auto_map": names, "trust_remote_code": True}))
    load_model_dir(demo_copy)
    read_config(demo_copy)
    with open_checkpoint(demo_copy):
        pass
    assert not fired.exists()
    assert "modeling_evil" not in sys.modules


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "model.gguf"])
def test_pickled_weights_are_not_read(tmp_path: Path, name: str) -> None:
    """CVE-2025-24357: `torch.load` ran code in a checkpoint. No file is looked for by its ending."""
    model, fired = make_llama(tmp_path / "model"), tmp_path / "fired"
    for weights in model.glob("*.safetensors*"):
        weights.unlink()
    (model / name).write_bytes(pickle.dumps(Trap(fired)))
    with pytest.raises(ModelError, match="safetensors"), open_checkpoint(model):
        pass
    with pytest.raises(ModelError, match="is no GGUF file"):
        stored_tensors(model / name)  # given by itself
    assert not fired.exists()


@pytest.mark.parametrize(
    "source",
    [
        "{{ cycler.__init__.__globals__['os'].popen('id').read() }}",
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__code__ }}",
        "{{ ''|attr('__class__') }}",
        "{{ lipsum.__globals__ }}",
        "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_models_template_does_not_get_out(source: str) -> None:
    """CVE-2026-5760 (and CVE-2024-34359 before it): a template in a model's file ran code."""
    turn = [ChatMessage(role="user", content="x")]
    try:
        said = ChatTemplate(source, {}).render(turn)
    except (InvalidRequest, TemplateError):
        return
    assert "globals" not in said  # an undefined value renders as nothing
    assert said.strip() == ""


def test_no_weights_are_fetched_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """CVE-2026-47155: parts of a pinned model came from elsewhere. A model is a directory here."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    with pytest.raises(InvalidRequest, match="does not exist"):
        load_model_dir(Path("hf-internal-testing/tiny-random-gpt2"))
