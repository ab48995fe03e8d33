"""`ryz bench make-model`: other libraries can read its models, and bad arguments are refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from typer.testing import CliRunner

from benchmarks.models.make_model import make_model, make_tokenizer, parameters
from benchmarks.models.shapes import SHAPES, ModelShape
from cli.bench.commands import app
from cli.console import CommandError
from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.checkpoint.weight_loader import open_source
from services.worker.engine.collectives.base import SingleRank
from services.worker.engine.config.layer import ExpertsConfig
from services.worker.engine.config.read_config import read_config
from services.worker.model_files.load_model import load_model

TINY = SHAPES["tiny"]


def test_the_presets_have_the_sizes_of_their_names() -> None:
    assert {name: round(parameters(SHAPES[name]) / 1e6) for name in SHAPES} == {
        "tiny": 0, "15m": 15, "110m": 110, "110m-moe": 506, "1.1b": 1100,
    }  # fmt: skip
    for shape in SHAPES.values():
        shape.check()


def test_transformers_and_the_engine_read_it(tiny: Path) -> None:
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 (slow to import)

    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    assert sum(p.numel() for p in model.parameters()) == parameters(TINY)
    with torch.inference_mode():
        logits = model(torch.tensor([[5, 100, 300]])).logits[0, -1]
    assert 0.3 < float(logits.std()) < 5  # logits differ between tokens, and none dominates
    config = read_config(tiny)
    assert (config.num_kv_heads, config.vocab_size, config.tied_embeddings) == (2, 512, True)


def test_a_mixture_is_read_as_mixtral(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 (slow to import)

    shape = replace(TINY, layers=1, experts=4, chosen=2)
    make_model(tmp_path, shape)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert sum(p.numel() for p in model.parameters()) == parameters(shape)
    mlp = read_config(tmp_path).layers[0].mlp
    assert isinstance(mlp, ExpertsConfig)
    assert (mlp.count, mlp.chosen, mlp.expert.inner) == (4, 2, TINY.ffn)
    with open_checkpoint(tmp_path) as checkpoint:  # checks that the tensors are those of the config
        assert open_source(checkpoint, read_config(tmp_path), SingleRank()).tensors


def test_the_tokenizer_has_the_vocabulary_and_a_chat_template(tiny: Path) -> None:
    from transformers import AutoTokenizer  # noqa: PLC0415 (slow to import)

    model = load_model(tiny)
    assert model.template is not None
    text = "The model: 12 words, größer."
    ids = model.tokenizer.encode(text, add_special_tokens=False)
    assert model.tokenizer.vocab_size == TINY.vocab
    assert AutoTokenizer.from_pretrained(tiny).decode(ids) == text


def test_a_large_vocabulary_is_filled_up() -> None:
    tokenizer = make_tokenizer(13_000, 0)  # more tokens than the corpus yields
    assert tokenizer.get_vocab_size() == 13_000
    assert sorted(tokenizer.get_vocab().values()) == list(range(13_000))
    again = Tokenizer.from_str(tokenizer.to_str())
    assert again.decode(again.encode("plain text", add_special_tokens=False).ids) == "plain text"


def test_a_seed_gives_the_same_weights_in_one_file_or_many(tiny: Path, tmp_path: Path) -> None:
    made = make_model(tmp_path, TINY, max_file_bytes=60_000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert made.files == len(set(index["weight_map"].values())) > 2
    assert index["metadata"]["total_size"] == made.bytes == 4 * parameters(TINY)
    split = {
        key: tensor for path in tmp_path.glob("*.safetensors") for key, tensor in load_file(path).items()
    }
    whole = load_file(tiny / "model.safetensors")
    assert split.keys() == whole.keys() == index["weight_map"].keys()
    assert all(torch.equal(split[name], whole[name]) for name in whole)


def test_writing_again_leaves_nothing_of_the_old_model(tmp_path: Path) -> None:
    make_model(tmp_path, TINY, max_file_bytes=60_000)
    make_model(tmp_path, TINY, seed=1)
    assert [path.name for path in tmp_path.glob("model*")] == ["model.safetensors"]


@pytest.mark.parametrize(("dtype", "kind"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_half_precision_is_the_rounded_full_one(
    tmp_path: Path, tiny: Path, dtype: str, kind: torch.dtype
) -> None:
    make_model(tmp_path, TINY, dtype)
    stored = load_file(tmp_path / "model.safetensors")
    for name, tensor in load_file(tiny / "model.safetensors").items():
        assert torch.equal(stored[name], tensor.to(kind)), name


def test_the_command_writes_a_changed_shape_once(tmp_path: Path) -> None:
    target = tmp_path / "model"
    options = ["make-model", str(target), "--shape", "tiny", "--layers", "1", "--untied", "--dtype", "bf16"]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    assert "1 file" in result.stdout
    config = read_config(target)
    assert (config.num_layers, config.tied_embeddings) == (1, False)
    refused = CliRunner().invoke(app, options)
    assert isinstance(refused.exception, CommandError)
    assert "not empty" in str(refused.exception)
    assert refused.exception.exit_code == 2
    assert CliRunner().invoke(app, [*options, "--force"]).exit_code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shape", "7b"], "--shape is one of tiny"),
        (["--dtype", "int8"], "--dtype is one of fp32"),
        (["--dim", "100", "--heads", "12"], "--dim 100 over --heads 12"),
        (["--heads", "12", "--kv-heads", "5"], "--kv-heads 5 does not divide --heads 12"),
        (["--vocab", "100"], "--vocab 100 is too small"),
        (["--experts", "4", "--chosen", "5"], "--chosen 5 of --experts 4"),
        (["--experts", "4"], "--chosen 0 of --experts 4"),
        (["--layers", "0"], "--layers must be a positive number"),
    ],
)
def test_sizes_that_make_no_model_are_named(tmp_path: Path, options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["make-model", str(tmp_path / "model"), *options])
    assert isinstance(result.exception, CommandError)
    assert result.exception.exit_code == 2
    assert message in str(result.exception)
    assert not (tmp_path / "model").exists()


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    result = CliRunner().invoke(app, ["make-model", str(path), "--shape", "tiny"])
    assert isinstance(result.exception, CommandError)
    assert "is a file" in str(result.exception)


def test_heads_must_be_even_sized() -> None:
    with pytest.raises(Exception, match="even multiple"):
        ModelShape(dim=9, layers=1, heads=3, kv_heads=3, ffn=8, vocab=300).check()
