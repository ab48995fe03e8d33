"""A worker started with an unusable model or setting: a one-line error and exit code 2."""

import json
import os
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from tests.kits.engine.rank_threads import make_llama
from tests.kits.programs.launch import run_program
from tests.kits.waiting import PATIENCE_S

ROOT = Path(__file__).parents[3]


def start(nats_url: str, model: Path, **settings: str) -> tuple[int, str]:
    """The exit code and the last line of a worker that ends by itself."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("RYZ_")}
    given = {"NATS_URL": nats_url, "GROUP": "refused", "MODEL": str(model), "LOG_LEVEL": "error"} | settings
    env |= {f"RYZ_{name}": value for name, value in given.items()}
    ended = run_program("services.worker", env=env, timeout_s=PATIENCE_S)
    return ended.returncode, ended.stderr.strip().splitlines()[-1]


@pytest.fixture
def model_copy(tmp_path: Path) -> Path:
    made = make_llama(tmp_path / "model")
    Tokenizer(models.BPE(vocab={"a": 0}, merges=[])).save(str(made / "tokenizer.json"))
    return made


def test_a_truncated_file(nats_url: str, model_copy: Path) -> None:
    file = model_copy / "model.safetensors"
    os.truncate(file, file.stat().st_size - 100)
    code, said = start(nats_url, model_copy)
    assert (code, str(file) in said) == (2, True), said
    assert said.startswith("worker cannot start: the engine refuses:")


def test_a_config_that_contradicts_the_tensors(nats_url: str, model_copy: Path) -> None:
    config = json.loads((model_copy / "config.json").read_text())
    (model_copy / "config.json").write_text(json.dumps(config | {"intermediate_size": 128}))
    code, said = start(nats_url, model_copy)
    assert code == 2
    assert "tensor model.layers.0.mlp.gate_proj.weight has shape (112, 64), config.json demands" in said


def test_settings_that_do_not_fit_the_model_or_the_machine(nats_url: str, model_copy: Path) -> None:
    code, said = start(nats_url, model_copy, TENSOR_PARALLEL="7")
    assert (code, "tensor_parallel=7" in said) == (2, True), said
    code, said = start(nats_url, model_copy, KV_CACHE_TOKENS=str(2**31))
    assert (code, f"kv_cache_tokens={2**31} needs" in said) == (2, True), said


def test_a_directory_that_is_none(nats_url: str, tmp_path: Path) -> None:
    code, said = start(nats_url, tmp_path / "none")
    assert (code, "does not exist" in said) == (2, True), said
