"""`ryz models convert`: round trips, and what the engine and the tokenizers make of both forms."""

import json
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from typer.testing import CliRunner

from cli.__main__ import app
from cli.console import CommandError
from cli.models.convert.probes import PROBES
from cli.stack.model_dir import demo_model
from services.worker.engine.checkpoint.weight_files import open_checkpoint
from services.worker.engine.checkpoint.weight_loader import open_source
from services.worker.engine.collectives.base import SingleRank
from services.worker.engine.config.read_config import read_config
from services.worker.gguf.gguf_file import read_gguf
from services.worker.model_files.load_model import load_model
from services.worker.model_files.model import Model
from tests.kits.engine.rank_threads import make_model
from tests.kits.worker.tokenizers import byte_level


def convert(source: Path, target: Path, *options: str) -> Path:
    result = CliRunner().invoke(app, ["models", "convert", str(source), str(target), *options])
    if isinstance(result.exception, CommandError):
        raise result.exception
    assert result.exit_code == 0, result.output
    assert not list(target.parent.glob(".*")), "nothing is left beside the result"
    return target


def weights(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / "model.safetensors")


def ids(model: Model, text: str) -> list[int]:
    return model.tokenizer.encode(text, add_special_tokens=False)


def require_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.float().equal(other[name].float()), name


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_a_way_there_and_back_changes_no_bit(kind: str, tmp_path: Path) -> None:
    first = convert(
        convert(demo_model(), tmp_path / "a.gguf", "--type", kind), tmp_path / "a", "--type", kind
    )
    again = convert(convert(first, tmp_path / "b.gguf"), tmp_path / "b", "--type", kind)
    assert (first / "model.safetensors").read_bytes() == (again / "model.safetensors").read_bytes()
    assert {tensor.dtype for tensor in weights(first).values()} == {
        {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind]
    }
    if kind != "F16":  # the demo is BF16
        require_equal(weights(demo_model()), weights(first))
    assert json.loads((first / "config.json").read_text())["rms_norm_eps"] == 1e-05


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_codes_stay_the_same_when_they_are_made_again(kind: str, tmp_path: Path) -> None:
    first = convert(demo_model(), tmp_path / "a.gguf", "--type", kind)
    again = convert(convert(first, tmp_path / "a"), tmp_path / "b.gguf", "--type", kind)
    found = [
        [path.read_bytes()[tensor.begin : tensor.end] for tensor in read_gguf(path).tensors.values()]
        for path in (first, again)
    ]
    kinds = {tensor.type.name for tensor in read_gguf(first).tensors.values()}
    assert kinds == {kind, "F32"}
    assert found[0] == found[1]


def test_both_forms_are_one_model_to_the_leader(tmp_path: Path) -> None:
    file = convert(demo_model(), tmp_path / "demo.gguf")
    back = convert(file, tmp_path / "demo")
    given, *others = (load_model(path) for path in (demo_model(), file, back))
    for other in others:
        assert other.context_length == given.context_length
        assert given.eos_ids <= other.eos_ids
        for text in PROBES:
            assert ids(other, text) == ids(given, text)
    template = [
        json.loads((path / "tokenizer_config.json").read_text())["chat_template"]
        for path in (demo_model(), back)
    ]
    assert template[0] == template[1]


@pytest.mark.parametrize("in_files", [True, False])
def test_named_chat_templates_are_kept(tmp_path: Path, in_files: bool) -> None:
    source = Path(shutil.copytree(demo_model(), tmp_path / "source"))
    content = json.loads((source / "tokenizer_config.json").read_text())
    templates = {
        "default": content["chat_template"],
        "tool_use": "{{ messages }}{{ tools }}",
        "rag": "{{ messages }}",
    }
    listed = [{"name": name, "template": text} for name, text in templates.items()]
    if in_files:
        (source / "chat_template.jinja").write_text(templates["default"])
        (source / "additional_chat_templates").mkdir()
        for name in ("tool_use", "rag"):
            (source / "additional_chat_templates" / f"{name}.jinja").write_text(templates[name])
    else:
        (source / "tokenizer_config.json").write_text(json.dumps(content | {"chat_template": listed}))
    file = convert(source, tmp_path / "named.gguf")
    metadata = read_gguf(file).metadata
    assert sorted(metadata["tokenizer.chat_templates"]) == ["rag", "tool_use"]
    assert metadata["tokenizer.chat_template.rag"] == templates["rag"]
    back = json.loads((convert(file, tmp_path / "named") / "tokenizer_config.json").read_text())
    assert {one["name"]: one["template"] for one in back["chat_template"]} == templates
    assert back["chat_template"][0]["name"] == "default"


def test_added_tokens_beyond_the_embedding_are_left_out(tmp_path: Path) -> None:
    source = Path(shutil.copytree(demo_model(), tmp_path / "source"))
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    tokenizer.add_special_tokens(["<extra>"])
    tokenizer.save(str(source / "tokenizer.json"))
    rows = json.loads((source / "config.json").read_text())["vocab_size"]
    assert tokenizer.token_to_id("<extra>") == rows
    file = convert(source, tmp_path / "larger.gguf")
    for path in (source, file, convert(file, tmp_path / "back")):
        made = ids(load_model(path), "an <extra> token")
        assert max(made) < rows
        assert load_model(path).tokenizer.decode(made) == "an <extra> token"


FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "mistral": ("mistral", {"sliding_window": 5, "num_key_value_heads": 2}),
    "qwen2": ("qwen2", {"num_key_value_heads": 1}),
    "qwen3": ("qwen3", {"head_dim": 24}),
    "llama 3.1": (
        "llama",
        {
            "head_dim": 32,
            "rope_parameters": {
                "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
            },
        },
    ),
    "yarn": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
                "original_max_position_embeddings": 128,
            }
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_the_same_shape_and_weights_in_both_forms(family: str, tmp_path: Path) -> None:
    kind, fields = FAMILIES[family]
    model = make_model(tmp_path / "given", kind, vocab_size=270, **fields)
    byte_level().save(str(model / "tokenizer.json"))
    file = convert(model, tmp_path / "x.gguf")
    back = convert(file, tmp_path / "back")
    config = read_config(model)
    assert read_config(back) == config
    assert read_config(file) == config
    require_equal(weights(model), weights(back))
    with open_checkpoint(file) as one, open_checkpoint(model) as other:
        stored, given = (open_source(each, config, SingleRank()) for each in (one, other))
        for name in given.tensors:
            assert stored.read(name).equal(given.read(name)), name


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A model with a vocabulary of 300."""
    return make_model(tmp_path / "small", "llama", vocab_size=300)


def pieces() -> Tokenizer:
    """A SentencePiece vocabulary as files of Llama 2 have it."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    names += ["\u2581", "t", "h", "e", "a", "th", "the", "\u2581the", "\u2581a", "\u2581\u2581"]
    merges = [("t", "h"), ("th", "e"), ("\u2581", "the"), ("\u2581", "a"), ("\u2581", "\u2581")]
    vocab = {name: index for index, name in enumerate(names)}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


def test_sentence_piece_vocabularies_keep_their_tokens(small: Path, tmp_path: Path) -> None:
    pieces().save(str(small / "tokenizer.json"))
    (small / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"}})
    )
    file = convert(small, tmp_path / "small.gguf")
    metadata = read_gguf(file).metadata
    assert (metadata["tokenizer.ggml.bos_token_id"], metadata["tokenizer.ggml.eos_token_id"]) == (1, 2)
    assert metadata["tokenizer.ggml.token_type"][:4] == [2, 3, 3, 6]
    assert metadata["tokenizer.ggml.tokens"][-1] == "[PAD299]"
    texts = ["the a the  theta", " the\n\u00e9", "", "   a"]
    for path in (file, convert(file, tmp_path / "back")):
        assert [ids(load_model(path), text) for text in texts] == [
            pieces().encode(text, add_special_tokens=False).ids for text in texts
        ]


def test_tokenizers_that_gguf_cannot_hold_are_refused_by_name(small: Path, tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=True)]
    )
    tokenizer.save(str(small / "tokenizer.json"))
    with pytest.raises(
        CommandError, match=r"tokenizer\.json: none of the rules that GGUF files can name"
    ) as caught:
        convert(small, tmp_path / "x.gguf")
    assert caught.value.exit_code == 2
    Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0)).save(str(small / "tokenizer.json"))
    with pytest.raises(CommandError, match="a tokenizer of kind 'Unigram' is not converted"):
        convert(small, tmp_path / "x.gguf")
    (small / "tokenizer.json").unlink()
    with pytest.raises(CommandError, match="cannot be read"):
        convert(small, tmp_path / "x.gguf")


def test_rope_scaling_that_gguf_cannot_say_is_refused(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    model = make_model(tmp_path / "given", "llama", vocab_size=270, rope_parameters=rope)
    byte_level().save(str(model / "tokenizer.json"))
    with pytest.raises(
        CommandError, match=r"GGUF files of llama cannot say its layers\[0\]\.attention\.rope\."
    ):
        convert(model, tmp_path / "x.gguf")


def test_what_is_there_is_not_written_over_unless_told(tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    file.write_text("mine")
    with pytest.raises(CommandError, match="add --force to write over it"):
        convert(demo_model(), file)
    assert file.read_text() == "mine"
    convert(demo_model(), file, "--force")
    target = tmp_path / "x"
    target.mkdir()
    (target / "mine").touch()
    convert(file, target, "--force")
    assert not (target / "mine").exists()


@pytest.mark.parametrize(
    ("target", "options", "said"),
    [
        ("x", (), "is a directory, so it becomes a file: name one, as"),
        (
            "x.gguf",
            ("--type", "Q4_K"),
            "`--type Q4_K`: choose one of F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, ",
        ),
    ],
)
def test_wrong_usage_is_one_sentence(
    target: str, options: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    with pytest.raises(CommandError, match=said) as caught:
        convert(demo_model(), tmp_path / target, *options)
    assert caught.value.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
    try:
        with pytest.raises(CommandError, match="cannot be written"):
            convert(demo_model(), tmp_path / "x.gguf")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert list(tmp_path.iterdir()) == []
