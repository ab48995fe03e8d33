"""`ryz models convert` of every family that has GGUF files: there and back, and there again."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import load_file, save_file

from cli.models.convert.gguf_model import GgufModel
from cli.models.convert.gguf_model_keys import ARCHITECTURES
from cli.models.convert.gguf_to_hf import GgufToHf
from cli.models.convert.hf_to_gguf import HfToGguf
from services.worker.engine.config.json_fields import ModelError
from services.worker.engine.config.read_config import read_config
from services.worker.gguf.config import ARCHITECTURES as READ
from services.worker.gguf.gguf_file import GgufFile, read_gguf
from services.worker.gguf.header_bytes import BadGguf
from tests.kits.families.gguf_variants import FILES, VARIANTS
from tests.kits.families.models import ENTRIES, save_model
from tests.kits.worker.tokenizers import byte_level


def model_of(variant: str, directory: Path) -> Path:
    _, name, changes = VARIANTS.get(variant) or (variant, *FILES[variant])
    entry = ENTRIES[name]
    save_model(replace(entry, fields=entry.fields | changes | {"vocab_size": 270}), directory)
    byte_level().save(str(directory / "tokenizer.json"))
    return directory


def to_gguf(model: Path, target: Path, kind: str = "F32") -> GgufFile:
    HfToGguf(model, GGMLQuantizationType[kind]).write(target, lambda _: None)
    return read_gguf(target)


def to_directory(file: Path, target: Path) -> Path:
    target.mkdir()
    GgufToHf(file, None).write(target, lambda _: None)
    return target


def test_every_architecture_that_is_read_is_written() -> None:
    assert set(ARCHITECTURES.values()) == READ.keys()


@pytest.mark.parametrize("variant", [name for name in (*FILES, *VARIANTS) if "joined" not in name])
def test_a_way_there_and_back_gives_the_same_files(variant: str, tmp_path: Path) -> None:
    model = model_of(variant, tmp_path / "m")
    file = to_gguf(model, tmp_path / "m.gguf")
    assert file.architecture == (VARIANTS.get(variant) or (variant,))[0]
    back = to_directory(file.path, tmp_path / "back")
    given, found = (load_file(path / "model.safetensors") for path in (model, back))
    config = read_config(model)
    assert given.keys() == found.keys()
    for name, tensor in given.items():
        # files of (1 + w) hold w, which is rounded as it is shifted: the sum has the same bits
        shift = config.final_norm.offset if name.endswith(("norm.weight", "layernorm.weight")) else 0.0
        assert torch.equal(tensor + shift, found[name] + shift), name
    if config.layers[0].attention.rope is None or config.layers[0].attention.rope.kind != "longrope":
        assert read_config(back) == config
    again = to_gguf(back, tmp_path / "n.gguf")
    keys = [
        {k: v for k, v in one.metadata.items() if k.startswith(one.architecture)} for one in (file, again)
    ]
    assert keys[0] == keys[1]
    for name, tensor_of in file.tensors.items():
        other = again.tensors[name]
        parts = ((file, tensor_of), (again, other))
        bits = [one.path.read_bytes()[tensor.begin : tensor.end] for one, tensor in parts]
        assert bits[0] == bits[1], name


def test_what_files_cannot_say_is_refused_by_its_name(tmp_path: Path) -> None:
    model = model_of("gemma2", tmp_path / "m")
    path = model / "config.json"
    fields = json.loads(path.read_text())
    path.write_text(json.dumps(fields | {"layer_types": ["full_attention"] * 3}))
    with pytest.raises(BadGguf, match=r"GGUF files of gemma2 cannot say its layers\[0\]\.attention\.window"):
        GgufModel(model, None)


def test_a_tensor_without_a_name_in_the_model_is_refused_by_its_name(tmp_path: Path) -> None:
    model = model_of("gptneox", tmp_path / "m")
    weights = load_file(model / "model.safetensors")
    save_file(weights | {"gpt_neox.other.weight": torch.ones(2)}, model / "model.safetensors")
    with pytest.raises(ModelError, match=r"gpt_neox\.other\.weight has no place in the model"):
        GgufModel(model, None)


def test_quantized_experts_and_fused_tensors_become_floats_and_the_same_codes(tmp_path: Path) -> None:
    entry = ENTRIES["gpt_oss"]
    sizes = {"hidden_size": 64, "intermediate_size": 64, "layer_types": FILES["gpt-oss"][1]["layer_types"]}
    fields = entry.fields | FILES["gpt-oss"][1] | sizes | {"vocab_size": 270}
    model = save_model(replace(entry, fields=fields), tmp_path / "m")
    byte_level().save(str(model / "tokenizer.json"))
    first = to_gguf(model, tmp_path / "a.gguf", "Q8_0")
    again = to_gguf(to_directory(first.path, tmp_path / "a"), tmp_path / "b.gguf", "Q8_0")
    assert first.tensors["blk.1.ffn_up_exps.weight"].type.name == "Q8_0"
    for name, tensor in first.tensors.items():
        other = again.tensors[name]
        codes = [file.path.read_bytes()[t.begin : t.end] for file, t in ((first, tensor), (again, other))]
        assert codes[0] == codes[1], name


@pytest.mark.parametrize("variant", ["deepseek2", "falcon, new", "phi3, partial"])
def test_transformers_computes_the_same_from_a_directory_that_was_a_file(
    variant: str, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 (slow to import)

    model = model_of(variant, tmp_path / "m")
    back = to_directory(to_gguf(model, tmp_path / "m.gguf").path, tmp_path / "back")
    text = torch.arange(3, 63).unsqueeze(0)
    with torch.no_grad():
        given, found = (
            AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)(text, use_cache=False).logits
            for path in (model, back)
        )
    assert torch.equal(given, found)
