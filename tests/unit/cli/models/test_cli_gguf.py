"""`ryz up` checks a GGUF file as a whole before it starts anything."""

import subprocess
import sys
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType

from cli.console import CommandError
from cli.models.convert.hf_to_gguf import HfToGguf
from cli.stack.model_dir import demo_model, find_model
from tests.kits.engine.gguf_models import write_gguf


def test_a_file_whose_tensors_do_not_fit_its_metadata_is_refused(tmp_path: Path) -> None:
    bare = write_gguf(demo_model(), tmp_path / "bare.gguf", "F16")
    with pytest.raises(CommandError, match="it holds no vocabulary"):
        find_model(bare, "torch", 2)
    path = tmp_path / "m.gguf"
    HfToGguf(demo_model(), GGMLQuantizationType.F16).write(path, lambda done: None)
    assert find_model(path, "torch", 2) == path
    path.write_bytes(path.read_bytes().replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_no.weight"))
    with pytest.raises(CommandError, match=r"blk\.1\.ffn_up\.weight is in none") as caught:
        find_model(path, "torch", 2)
    assert caught.value.exit_code == 2
    assert find_model(path, "null", 2) == path


def test_the_check_imports_no_torch() -> None:
    """It would take a second of every start."""
    code = "import sys, services.worker.engine.checkpoint.tensor_table; print('torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"
